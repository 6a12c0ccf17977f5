"""The spaces inside a run: train and test scores of each, weights drawn anew, neighbours of other classes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

import oodml
from oodml import OodmlError
from oodml.adaptation.spaces import Spaces, generalisation_gap, neighbours_across_classes, run_spaces
from oodml.cli._app import method_name
from oodml.cli.spaces import spaces_command
from oodml.training import train
from oodml.training.result import FORMAT


def test_the_gap_of_every_space_and_weights_drawn_anew(settings):
    run = train(settings(method="sharing", steps=2, eval_every=2, selection="last", metrics=("recall@1",)))
    rows = {row["space"]: row for row in generalisation_gap(run.path)}
    again = " (weights drawn anew)"
    assert set(rows) == {
        *("embedding", "discriminative", "shared", "features"),
        *("embedding" + again, "discriminative" + again, "shared" + again),
    }
    assert rows["embedding"]["test"] == pytest.approx(run.scores["recall@1"], abs=0.02)
    assert rows["shared"]["test"] == pytest.approx(run.history[-1]["watched"]["shared"]["recall@1"], abs=0.02)
    assert [rows[name]["dim"] for name in ("embedding", "shared", "features")] == [8, 4, 64]
    for row in rows.values():
        assert row["gap"] == pytest.approx(row["test"] - row["train"])

    kept, drawn = run_spaces(run.path), run_spaces(run.path, reset=True)
    torch.testing.assert_close(kept.rows["features"], drawn.rows["features"])
    assert not torch.allclose(kept.rows["shared"], drawn.rows["shared"], atol=0.1)
    torch.testing.assert_close(drawn.rows["shared"], run_spaces(run.path, reset=True).rows["shared"])
    labels = oodml.load_dataset("patterns").labels
    np.testing.assert_array_equal(labels[kept.indices], kept.labels)
    with pytest.raises(OodmlError, match="Did you mean 'train'"):
        run_spaces(run.path, side="trian")


def test_neighbours_across_classes_are_the_nearest_of_other_classes():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(30, 3)).astype(np.float32), np.arange(30) % 3
    spaces = Spaces({"one": torch.from_numpy(rows)}, labels, np.arange(30), oodml.load_dataset("patterns"))
    found = neighbours_across_classes(spaces, np.array([4, 7]), k=4)["one"]
    for query, nearest in zip((4, 7), found, strict=True):
        others = [i for i in range(30) if labels[i] != labels[query]]
        expected = sorted(others, key=lambda i: np.linalg.norm(rows[i] - rows[query]))[:4]
        assert [place for place, _ in nearest] == expected
        assert [distance for _, distance in nearest] == pytest.approx(
            [np.linalg.norm(rows[i] - rows[query]) for i in expected]
        )
    with pytest.raises(OodmlError, match="smaller k"):
        neighbours_across_classes(spaces, np.array([0]), k=21)


def test_the_command_refuses_a_folder_without_a_finished_run(tmp_path):
    with pytest.raises(OodmlError, match="no finished run"):
        spaces_command(tmp_path, tmp_path / "page.html", None, "test", None, False, "cpu")
    assert not (tmp_path / "page.html").exists()


def test_images_of_another_dataset_are_refused(settings):
    run = train(settings(steps=2, selection="last", metrics=("recall@1",))).path
    other = oodml.load_dataset("patterns", classes=12)
    with pytest.raises(OodmlError, match=r"not the images the run .* was trained on: 96 images of 12 classes"):
        run_spaces(run, dataset=other)
    copied = replace(oodml.load_dataset("patterns"), fingerprint="of files with another date")
    assert len(run_spaces(run, dataset=copied).labels) == 64


def test_another_root_keeps_the_other_options_of_the_dataset(finished, monkeypatch):
    dataset = {"name": "folder", "root": "there", "images_per_class": 5}
    (finished / "config.yaml").write_text(yaml.safe_dump({"dataset": dataset}))
    asked = []

    def stop(spec):
        asked.append(spec)
        raise KeyboardInterrupt

    monkeypatch.setattr("oodml.data.load_dataset", stop)
    with pytest.raises(KeyboardInterrupt):
        spaces_command(finished, finished / "page.html", None, "test", "here", False, "cpu")
    assert asked == [dataset | {"root": "here"}]


@pytest.fixture
def finished(tmp_path):
    """A folder that looks like a finished run until its settings are read."""
    result = {"format": FORMAT, "selected": {"scores": {}}, "untrained": {}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    return tmp_path


def test_the_command_refuses_a_device_torch_does_not_know(finished):
    with pytest.raises(OodmlError, match="not a device of torch"):
        spaces_command(finished, finished / "page.html", None, "test", None, False, "tpu")


@pytest.mark.parametrize("option", ["--out", "--figures"])
def test_the_command_looks_first_whether_it_can_write(finished, option):
    file = finished / "result.json"
    page, figures = (file / "page.html", None) if option == "--out" else (finished / "page.html", file / "figures")
    with pytest.raises(OodmlError, match=rf"{option}: .*result.json is a file"):
        spaces_command(finished, page, figures, "test", None, False, "cpu")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("plain", "margin"),
        ({"name": "plain", "loss": {"name": "triplet"}}, "triplet"),
        (None, "margin"),
        ("rho", "rho"),
    ],
)
def test_a_run_is_called_by_its_loss_where_it_has_no_other_method(method, name):
    assert method_name(method) == name
