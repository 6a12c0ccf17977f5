"""Encoders of one's own on the splits of a study: callables, files, and everything that can be wrong with them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

import oodml
from oodml.data import ArraySource, build_dataset, register_dataset
from oodml.shift import Split, save_splits
from oodml.study import load_study
from oodml.study.embeddings import embed_images, find_encoder, read_embeddings
from oodml.study.encoders import add_encoder, scored_file
from oodml.study.grid import save_plan
from oodml.study.run import prepare
from oodml.study.settings import StudyConfig
from oodml.study.store import Store

CLASSES = [f"class{i}" for i in range(8)]
PER_CLASS = 5


def mean_colour(pictures):
    return np.stack([np.asarray(picture, dtype=np.float32).mean((0, 1)) for picture in pictures])


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    base = rng.integers(40, 215, (8, 1, 1, 3))
    pixels = np.concatenate([np.clip(b + rng.integers(-30, 30, (PER_CLASS, 16, 16, 3)), 0, 255) for b in base])
    source = ArraySource(pixels.astype(np.uint8), [f"{i}.png" for i in range(40)])
    made = build_dataset("colours", source, [name for name in CLASSES for _ in range(PER_CLASS)])
    register_dataset("colours", lambda: made, replace=True, summary="Coloured noise for a test.")
    return made


@pytest.fixture
def splits():
    easy = Split(CLASSES[:4], CLASSES[4:], name="easy", fid=1.0, dataset="colours")
    hard = Split(CLASSES[4:], CLASSES[:3], name="hard", fid=9.0, dataset="colours")
    return [easy, hard]


@pytest.fixture
def study(tmp_path, dataset, splits):
    folder = tmp_path / "study"
    folder.mkdir()
    save_splits(folder / "splits.json", splits)
    (folder / "study.yaml").write_text(yaml.safe_dump({"dataset": "colours", "methods": ["margin"]}))
    save_plan([], Store(folder))
    return folder


def test_a_function_is_scored_on_every_split_and_enters_the_table(study, dataset, splits):
    held = add_encoder(study, mean_colour, "colour mean", quiet=True)
    for split in splits:
        rows = dataset.indices_of(split.test)
        expected = oodml.evaluate(mean_colour([dataset.image(i) for i in rows]), dataset.labels[rows], match=(3, 5))
        assert held["splits"][split.name] == pytest.approx(dict(expected))
    assert json.loads((study / "scored" / "colour-mean.json").read_text()) == held
    table = load_study(study)
    assert table.kinds == {"colour mean": "external"}
    assert table.splits == ["easy", "hard"]
    assert "colour mean" in table.ags("recall@1:matched")


def test_an_encoder_may_give_half_precision(study):
    exact = add_encoder(study, lambda pictures: mean_colour(pictures) // 1, "exact", quiet=True)
    half = add_encoder(study, lambda x: torch.from_numpy(mean_colour(x) // 1).bfloat16(), "half", quiet=True)
    assert half["splits"] == exact["splits"], "whole numbers up to 256 are exact in bfloat16"


def test_scores_on_other_splits_of_the_same_names_are_left_out_and_said_so(study, splits):
    add_encoder(study, mean_colour, "colour", quiet=True)
    save_splits(study / "splits.json", [splits[0], replace(splits[1], test=CLASSES[1:4])])
    with pytest.warns(UserWarning, match=r"other splits than 'colour' was scored on"):
        assert load_study(study).splits == ["easy"]
    save_plan([], Store(study), match=(2, 4))
    with pytest.warns(UserWarning, match="other splits"), pytest.raises(oodml.OodmlError, match="No run"):
        load_study(study)
    held = add_encoder(study, mean_colour, "colour", quiet=True)
    assert held["match"] == [2, 4], "as the runs of the study are reduced"
    assert load_study(study).splits == ["easy", "hard"]


def test_a_picture_is_embedded_once_however_many_splits_test_on_it(dataset, splits):
    seen = []
    overlapping = [*splits, Split(CLASSES[:2], CLASSES[2:6], name="third", fid=3.0, dataset="colours")]

    def counting(pictures):
        seen.append(len(pictures))
        return mean_colour(pictures)

    rows = embed_images(counting, dataset, overlapping, batch_size=7, quiet=True)
    assert sum(seen) == 40
    wanted = dataset.indices_of(overlapping[2].test)
    np.testing.assert_array_equal(rows["third"], mean_colour([dataset.image(i) for i in wanted]))


@pytest.mark.parametrize("form", ["order", "indices", "paths", "whole"])
def test_files_in_every_form_mean_the_same(study, dataset, splits, tmp_path, form):
    folder, rng = tmp_path / "mine", np.random.default_rng(1)
    folder.mkdir()
    every = rng.normal(size=(40, 6)).astype(np.float32)
    if form == "whole":
        np.savez(tmp_path / "all.npz", embeddings=every, labels=dataset.labels)
        found = read_embeddings(tmp_path / "all.npz", dataset, splits)
    else:
        for split in splits:
            rows = dataset.indices_of(split.test)
            if form != "order":
                rows = rng.permutation(rows)
            extra = {"indices": rows} if form == "indices" else {}
            if form == "paths":
                extra = {"paths": np.array([dataset.path(i) for i in rows])}
            np.savez(folder / f"{split.name}.npz", embeddings=every[rows], **extra)
        found = read_embeddings(folder, dataset, splits)
    for split in splits:
        np.testing.assert_array_equal(found[split.name], every[dataset.indices_of(split.test)])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embeddings": np.zeros((19, 2))}, "19 embeddings for 20 images"),
        ({"vectors": np.zeros((20, 2))}, "expected `embeddings`"),
        ({"embeddings": np.full((20, 2), np.nan)}, "NaN"),
        ({"embeddings": np.zeros((20, 2)), "indices": np.arange(20)}, "lacks 20 of 20 images"),
        ({"embeddings": np.zeros((20, 2)), "indices": np.arange(30, 50)}, "positions in the dataset"),
        ({"embeddings": np.zeros((20, 2)), "paths": np.array(["x"] * 20)}, "'x' is not an image"),
        ({"embeddings": np.zeros((20, 2)), "labels": np.arange(20)}, "in another order"),
        ({"embeddings": np.zeros(20)}, "shape"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(study, dataset, splits, tmp_path, arrays, message):
    np.savez(tmp_path / "easy.npz", **arrays)
    with pytest.raises(oodml.OodmlError, match=message):
        read_embeddings(tmp_path, dataset, splits[:1])


def test_a_missing_split_a_missing_study_and_a_broken_file_are_named(study, dataset, splits, tmp_path):
    np.savez(tmp_path / "easy.npz", embeddings=np.zeros((20, 2)))
    with pytest.raises(oodml.OodmlError, match=r"lacks hard\.npz"):
        read_embeddings(tmp_path, dataset, splits)
    (tmp_path / "easy.npz").write_bytes(b"no archive")
    with pytest.raises(oodml.OodmlError, match="cannot be read"):
        read_embeddings(tmp_path, dataset, splits[:1])
    with pytest.raises(oodml.OodmlError, match="holds no study"):
        add_encoder(tmp_path / "nothing", mean_colour, "x")
    assert not (study / "scored").exists()


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (lambda pictures: np.zeros((1, 3)), "rows expected"),
        (lambda pictures: np.full((len(pictures), 3), np.inf), "infinite"),
        (lambda pictures: [["text"]] * len(pictures), "must give numbers"),
    ],
)
def test_a_wrong_function_is_refused_and_nothing_is_written(study, encoder, message):
    with pytest.raises(oodml.OodmlError, match=message):
        add_encoder(study, encoder, "x", quiet=True)
    assert not (study / "scored").exists()


def stumbling(pictures):
    raise KeyError("weights")


def test_a_function_that_fails_is_named_with_its_error(study):
    with pytest.raises(oodml.OodmlError, match=r"encoder .*:stumbling failed on 20 images: KeyError: 'weights'"):
        add_encoder(study, stumbling, "x", batch_size=20, quiet=True)
    assert not (study / "scored").exists()


def test_a_function_is_found_by_its_address(tmp_path, monkeypatch):
    (tmp_path / "my_encoder_module.py").write_text("def embed(pictures):\n    return [[0.0]] * len(pictures)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert find_encoder("my_encoder_module:embed")([1, 2]) == [[0.0], [0.0]]
    with pytest.raises(oodml.OodmlError, match=r"no function 'other'.*Did you mean my_encoder_module:embed\?"):
        find_encoder("my_encoder_module:other")
    with pytest.raises(oodml.OodmlError, match=r"no function 'nothing'\. Give module:function\.$"):
        find_encoder("os:nothing")  # which has a hundred others
    with pytest.raises(oodml.OodmlError, match=r"Did you mean os:getcwd\?$"):
        find_encoder("os:getcw")
    (tmp_path / "my_broken_module.py").write_text("1 / 0\n")
    with pytest.raises(oodml.OodmlError, match="fails when it is imported: ZeroDivisionError: division by zero"):
        find_encoder("my_broken_module:embed")
    with pytest.raises(oodml.OodmlError, match="cannot be imported"):
        find_encoder("no_such_module_at_all:embed")


def test_labels_become_file_names(tmp_path):
    assert scored_file(Store(tmp_path), "my encoder/v2") == "scored/my-encoder-v2.json"
    with pytest.raises(oodml.OodmlError, match="no letter"):
        scored_file(Store(tmp_path), "../..")


def test_labels_that_differ_little_are_kept_apart(study):
    for _ in range(2):
        for label in ("a b", "a-b", "a/b"):
            add_encoder(study, mean_colour, label, quiet=True)
    assert sorted(load_study(study).methods) == ["a b", "a-b", "a/b"]
    assert len(load_study(study).rows) == 6


def test_a_label_of_a_method_and_a_method_of_a_label_are_refused(study, dataset, splits, tmp_path):
    settings = {"dataset": "colours", "splits": str(tmp_path / "splits.json"), "methods": ["margin"]}
    save_splits(tmp_path / "splits.json", splits)
    prepare(StudyConfig(**settings), Store(study), quiet=True)
    with pytest.raises(oodml.OodmlError, match="'margin' is a method that the study trains; give the encoder another"):
        add_encoder(study, mean_colour, "margin", quiet=True)
    assert not (study / "scored").exists()
    add_encoder(study, mean_colour, "mine", quiet=True)
    for label, more in (("mine", {}), ("tiny", {"generic": ["tiny"]})):
        changed = StudyConfig(**{**settings, "methods": {label: "margin"}, **more})
        with pytest.raises(oodml.OodmlError, match=f"'{label}' is an encoder that the study scores"):
            prepare(changed, Store(study), quiet=True)


def test_the_commands_score_and_rank(study, dataset, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from oodml.cli import app, study_score, study_show

    assert study_show.study_app and study_score.study_app.registered_commands

    np.savez(tmp_path / "all.npz", embeddings=np.random.default_rng(2).normal(size=(40, 6)))
    run = CliRunner().invoke
    done = run(app, ["study", "score", str(study), str(tmp_path / "all.npz"), "--name", "random", "--quiet"])
    assert done.exit_code == 0, done.output
    assert "random is number 1 of 1" in done.output
    add_encoder(study, mean_colour, "colour", quiet=True)
    assert run(app, ["study", "leaderboard", str(study), "--out", str(tmp_path / "board.json")]).exit_code == 0
    board = json.loads((tmp_path / "board.json").read_text())
    assert [row["method"] for row in board["metrics"]["recall@1"]["ranking"]] == ["colour", "random"]
    printed = run(app, ["study", "leaderboard", str(study), "--metrics", "recall@1"])
    assert printed.output.index(" colour ") < printed.output.index(" random ")
    assert "Not trained here: colour, random." in printed.output
    plain = run(app, ["study", "leaderboard", str(study)]).output
    assert plain.index("recall@1:matched in per cent") < plain.index("recall@1 in per cent")
    assert "nmi in per cent" not in plain and "Also measured (--metrics): recall@2" in plain
    assert next(iter(board["metrics"])) == "recall@1:matched"
    with pytest.raises(oodml.OodmlError, match=r"\.json or \.md"):
        run(app, ["study", "leaderboard", str(study), "--out", "x.txt"], catch_exceptions=False)
