"""Published encoders without training: their forms against plain numpy, whitening, and where they are stored."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from torch import nn

import oodml
from oodml import OodmlError, Split
from oodml.encoders import PUBLISHED
from oodml.encoders import score_encoder as rows_of
from oodml.encoders.published import encoder_specs, input_side, read_splits, scored_by
from oodml.encoders.score import fit_whitening
from oodml.models import Backbone, list_backbones, make_backbone
from oodml.shift import save_splits
from oodml.study import load_study
from oodml.study.encoders import add_encoder
from oodml.study.grid import save_plan
from oodml.study.store import Store


@pytest.fixture(scope="module")
def data():
    return oodml.load_dataset("patterns")


@pytest.fixture(scope="module")
def splits(data):
    easy = replace(data.default_split, name="easy", fid=1.0)
    return [easy, Split(data.classes[:6], data.classes[10:], name="hard", fid=4.0, dataset="patterns")]


def test_every_form_is_scored_as_plain_numpy_has_it(data, splits):
    model = make_backbone("tiny", seed=3)
    rows = oodml.evaluate_pretrained(
        data, splits, [model], forms=["raw", "normalised", "whitened"], metrics=["recall@1", "map@r"], quiet=True
    )
    assert [(row.split, row.form) for row in rows[:4]] == [
        ("easy", "raw"), ("easy", "normalised"), ("easy", "whitened"), ("hard", "raw"),
    ]  # fmt: skip
    features = oodml.extract_features(data, model, quiet=True)
    for row in rows:
        split = next(each for each in splits if each.name == row.split)
        train, test = data.indices_of(split.train), data.indices_of(split.test)
        x = features[test].astype(np.float64)
        if row.form == "whitened":
            centred = features[train] - features[train].mean(0, dtype=np.float64)
            _, singular, directions = np.linalg.svd(centred, full_matrices=False)
            kept = singular**2 > 1e-6 * singular[0] ** 2
            x = (x - features[train].mean(0, dtype=np.float64)) @ (directions[kept].T / singular[kept])
        if row.form != "raw":
            x /= np.linalg.norm(x, axis=1, keepdims=True)
        expected = oodml.evaluate(x.astype(np.float32), data.labels[test], ["recall@1", "map@r"])
        assert row.scores == pytest.approx(dict(expected), abs=0.02)  # ties of nearly equal distances may turn
        assert row.backbone == "tiny" and row.fid == split.fid


def test_whitened_features_are_uncorrelated_with_variance_one_and_know_only_what_they_were_fitted_to():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 8)) + 3  # rank 5 in 8 dimensions
    white = fit_whitening(x)(x)
    assert white.shape == (300, 5)
    np.testing.assert_allclose(np.cov(white, rowvar=False, bias=True), np.eye(5), atol=1e-5)
    assert fit_whitening(x, components=2)(x).shape == (300, 2)
    np.testing.assert_allclose(np.abs(fit_whitening(x, components=2)(x)), np.abs(white[:, :2]), rtol=1e-3, atol=1e-4)
    other = fit_whitening(x[:100])(x)
    assert not np.allclose(np.abs(other), np.abs(white), atol=0.1)
    with pytest.raises(OodmlError, match="at least two images"):
        fit_whitening(x[:1])


def test_a_network_that_takes_one_size_only_is_given_it():
    class OneSize(nn.Module):
        def forward(self, images):
            assert images.shape[-1] == 96, "Input height doesn't match model"
            return images.mean((2, 3), keepdim=True)

    strict = Backbone(OneSize(), name="strict", feature_dim=3, input_size=96)
    assert input_side(strict, 32) == 96 and strict.training
    assert input_side(make_backbone("tiny"), 16) is None
    assert input_side(make_backbone("tiny").to("meta"), 16) is None, "it is tried where its weights are"


def test_encoders_are_named_in_every_way(tmp_path):
    found = encoder_specs(["tiny", "clip", {"name": "resnet18", "weights": "x.pth", "label": "mine"}])
    assert found[0] == {"name": "tiny"}
    assert found[1] == {"name": PUBLISHED["clip"], "label": "clip"}
    assert found[2]["label"] == "mine"
    with pytest.raises(OodmlError, match="Unknown backbone 'restnet18'"):
        encoder_specs(["restnet18"])
    with pytest.raises(OodmlError, match="Unknown key of an encoder 'wights'"):
        encoder_specs([{"name": "tiny", "wights": "x"}])
    with pytest.raises(OodmlError, match="mapping with 'name'"):
        encoder_specs([{"weights": "x"}])


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@pytest.mark.parametrize(
    ("name", "normalisation", "trained_at", "used_at", "dim"),
    [
        ("clip", OPENAI, 224, 224, 512),
        ("bit-21k", HALF, 224, 224, 2048),
        ("bit-1k", HALF, 448, 224, 2048),
        ("efficientnet-b0", IMAGENET, 224, 224, 1280),
        ("resnet50-1k", IMAGENET, 224, 224, 2048),
        ("dinov2", IMAGENET, 518, 518, 384),
        ("swav", IMAGENET, 224, 224, 2048),
    ],
)
def test_the_papers_encoders_get_the_input_they_were_trained_on(name, normalisation, trained_at, used_at, dim):
    """Without their weights, which need the hub: the name resolves, has weights there, and the input is theirs."""
    from oodml.models.backbones.timm_models import import_timm

    (spec,) = encoder_specs([name])
    assert spec["name"] in list_backbones() or import_timm().models.is_model_pretrained(spec["name"])
    model = make_backbone(spec["name"], pretrained=False)
    assert (tuple(model.mean.flatten().tolist()), tuple(model.std.flatten().tolist())) == (
        pytest.approx(normalisation[0]),
        pytest.approx(normalisation[1]),
    )
    assert (model.input_size, model.feature_dim) == (trained_at, dim)
    assert (input_side(model, 224) or 224) == used_at


def test_every_short_name_is_tested_above():
    (mark,) = test_the_papers_encoders_get_the_input_they_were_trained_on.pytestmark
    assert {case[0] for case in mark.args[1]} == set(PUBLISHED)


def test_splits_come_from_files_lists_and_names(data, splits, tmp_path):
    save_splits(tmp_path / "s.json", splits)
    assert [s.name for s in read_splits(data, tmp_path / "s.json")] == ["easy", "hard"]
    assert [s.name for s in read_splits(data, f"{tmp_path}/s.json#hard")] == ["hard"]
    (tmp_path / "s.json").rename(tmp_path / "s#1.json")
    assert [s.name for s in read_splits(data, tmp_path / "s#1.json")] == ["easy", "hard"]
    assert [s.name for s in read_splits(data, ["default", splits[1]])] == ["default", "hard"]
    with pytest.raises(OodmlError, match="is of 'cub200', and the dataset at hand is 'patterns'"):
        read_splits(data, Split(["a"], ["b"], dataset="cub200"))


def test_mistakes_are_named_before_anything_is_computed(data):
    with pytest.raises(OodmlError, match="Unknown form of features 'whiten'"):
        oodml.evaluate_pretrained(data, forms=["whiten"])
    with pytest.raises(OodmlError, match="Unknown metric"):
        oodml.evaluate_pretrained(data, metrics=["recal@1"])


def test_any_encoder_becomes_the_same_rows(data, splits):
    """A function of positions and the vectors of each split, of the same numbers; whitening needs the former."""
    features = oodml.extract_features(data, "tiny", quiet=True)
    stored = {split.name: features[data.indices_of(split.test)] for split in splits}
    options = {"label": "mine", "kind": "untrained", "forms": ["raw", "normalised"]}
    rows = rows_of(features.__getitem__, data, splits, ["recall@1"], **options)
    assert rows == rows_of(stored, data, splits, ["recall@1"], **options)
    found = [(row.backbone, row.kind, row.split, row.fid, row.form, row.dim) for row in rows]
    assert found[:2] == [("mine", "untrained", "easy", 1.0, form, 64) for form in ("raw", "normalised")]
    labels = data.labels[data.indices_of(splits[1].test)]
    assert rows[2].scores == oodml.evaluate(stored["hard"], labels, ["recall@1"])
    with pytest.raises(OodmlError, match="vectors of the train classes"):
        rows_of(stored, data, splits, label="mine", forms=["whitened"])


def test_encoders_enter_the_table_of_a_study(data, splits, tmp_path):
    save_splits(tmp_path / "splits.json", splits)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"dataset": "patterns", "methods": ["margin"]}))
    save_plan([], Store(tmp_path))
    held = add_encoder(tmp_path, make_backbone("tiny"), quiet=True)
    add_encoder(tmp_path, make_backbone("tiny"), form="whitened", quiet=True)
    table = load_study(tmp_path)
    assert set(table.methods) == {"tiny", "tiny (whitened)"}
    assert set(table.kinds.values()) == {"external"}
    alone = oodml.evaluate_pretrained(data, splits, [make_backbone("tiny")], forms=["normalised"], quiet=True)
    assert held["splits"]["hard"]["recall@1"] == pytest.approx(alone[1].scores["recall@1"])
    assert held["backbone"] == "tiny"
    with pytest.raises(OodmlError, match="holds no study with splits"):
        add_encoder(tmp_path / "none", "tiny")


def test_scores_of_the_former_clip_are_not_those_of_todays():
    assert scored_by("clip", {"backbone": "clip_vit_b32"})
    assert not scored_by("clip", {}), "before the backbone was written: 768-d, GELU"
    assert scored_by("dinov2", {}) and scored_by("tiny", {})
    assert not scored_by("dinov2", {"backbone": "tiny"})


def test_the_commands_print_tables_and_json(data, splits, tmp_path, settings):
    from typer.testing import CliRunner

    from oodml.adaptation import load_few_shot
    from oodml.cli import fewshot, pretrained  # noqa: F401 - they add their commands
    from oodml.cli._app import app
    from oodml.training import train

    save_splits(tmp_path / "s.json", splits)
    runner = CliRunner()
    command = [
        "pretrained",
        "patterns",
        "--splits",
        str(tmp_path / "s.json"),
        "--backbone",
        "tiny",
        "--metrics",
        "map@r",
    ]
    shown = runner.invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "easy" in shown.output and "hard" in shown.output and "normalised" in shown.output
    rows = json.loads(runner.invoke(app, [*command, "--json", "--form", "raw"]).stdout)
    assert rows[0]["form"] == "raw" and 0 < rows[0]["scores"]["map@r"] < 1
    assert isinstance(runner.invoke(app, ["pretrained"]).exception, OodmlError)

    run = train(settings(steps=3)).path
    options = ["--shots", "2", "--episodes", "2", "--steps", "2", "--device", "cpu"]
    shown = runner.invoke(app, ["fewshot", str(run), *options])
    assert shown.exit_code == 0, shown.output
    assert "zero-shot" in shown.output and "±" in shown.output and load_few_shot(run) == {}
    saved = json.loads(runner.invoke(app, ["fewshot", str(run), *options, "--json", "--save"]).stdout)
    assert load_few_shot(run)[2].to_json() == saved["2"]


def test_whitening_keeps_at_least_one_direction():
    with pytest.raises(OodmlError, match="at least one direction"):
        fit_whitening(np.random.default_rng(0).normal(size=(20, 4)), components=0)


def test_components_without_whitening_are_refused_before_anything_is_computed(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from oodml.cli import pretrained  # noqa: F401 - it adds its command
    from oodml.cli._app import app

    with pytest.raises(OodmlError, match=r"nothing is whitened here \(normalised, raw\): ask for the form 'whitened'"):
        oodml.evaluate_pretrained("patterns", components=4)
    with pytest.raises(OodmlError, match="nothing is whitened"):
        add_encoder(tmp_path, "tiny", components=4)
    with pytest.raises(OodmlError, match="at least one direction, got components=0"):
        oodml.evaluate_pretrained("patterns", forms=["whitened"], components=0)
    for place in (["patterns"], ["--study", str(tmp_path)]):
        refused = CliRunner().invoke(app, ["pretrained", *place, "--backbone", "tiny", "--components", "4"])
        assert "nothing is whitened" in str(refused.exception)

    both = CliRunner().invoke(app, ["pretrained", "patterns", "--study", str(tmp_path)])
    assert "--study has its own dataset and splits" in str(both.exception)

    asked = []
    scored = {"label": "x", "splits": {}}
    monkeypatch.setattr("oodml.study.encoders.add_encoder", lambda *_, **given: asked.append(given) or scored)
    forms = ["--form", "whitened", "--form", "raw", "--components", "4"]
    assert CliRunner().invoke(app, ["pretrained", "--study", str(tmp_path), *forms]).exit_code == 0
    assert [(each["form"], each["components"]) for each in asked] == [("whitened", 4), ("raw", None)]
