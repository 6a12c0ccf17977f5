"""`oodml train`, `oodml methods`, `oodml evaluate --run`: what they print and refuse."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

import oodml
from oodml.cli import evaluate, methods, train  # noqa: F401 - registers the commands
from oodml.cli._app import app
from oodml.shift import Split


def run(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, list(words), catch_exceptions=True)


def test_train_prints_scores_and_evaluate_reads_the_run(tmp_path, settings):
    settings(out=None, steps=4).save(tmp_path / "config.yaml")
    folder = str(tmp_path / "run")
    done = run("train", str(tmp_path / "config.yaml"), "--method", "triplet", "--set", "log_every=2", "--out", folder)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "run" / "result.json").read_text())
    assert data["config"]["method"] == {"name": "plain", "loss": "triplet"} and data["config"]["log_every"] == 2
    assert f"{100 * data['selected']['scores']['recall@1']:.1f}" in done.output
    assert "patterns · tiny · triplet · seed 0" in done.output
    assert "scored: 64 images of 8 classes" in run("evaluate", "--run", folder, "--metrics", "recall@1").output
    again = run("evaluate", "--run", folder, "--metrics", "recall@1", "--json")
    found = json.loads(again.stdout)["scores"]["recall@1"]
    assert found == pytest.approx(data["selected"]["scores"]["recall@1"], abs=1e-6)


def test_a_split_file_names_its_dataset(tmp_path):
    root, names = tmp_path / "mine", [f"c{i}" for i in range(6)]
    for i, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for j in range(4):
            Image.new("RGB", (16, 16), (40 * i, 60 * j, 99)).save(root / name / f"{j}.png")
    split = Split(names[:4], names[4:], name="one", dataset="folder", provenance={"root": str(root)})
    split.save(tmp_path / "s.json")
    words = ("--split", str(tmp_path / "s.json"), "--steps", "2", "--selection", "last", "--set", "batch_size=8")
    done = run("train", *words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "folder · tiny · margin" in done.output
    data = json.loads((tmp_path / "run" / "result.json").read_text())
    assert data["config"]["dataset"] == {"name": "folder", "root": str(root)}


def test_of_several_processes_one_speaks(tmp_path, settings, monkeypatch):
    settings(steps=2).save(tmp_path / "config.yaml")
    words = ("train", str(tmp_path / "config.yaml"))
    assert "recall@1" in run(*words).stdout
    monkeypatch.setenv("RANK", "1")  # as torchrun numbers them
    assert run(*words).stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "margn"),
        ("--set", "lrr=1"),
        ("--set", "lr"),
        ("--set", "sampler={name: spc"),
        ("--set", "seed=2001-99-99"),
        ("--train", "heads"),
    ],
)
def test_mistakes_are_one_sentence(words):
    done = run("train", *words)
    assert isinstance(done.exception, oodml.OodmlError)


def test_methods_lists_everything_and_explains_one():
    listed = run("methods").stdout
    for name in (*oodml.list_methods(), *oodml.list_losses(), *oodml.list_miners(), *oodml.list_batch_samplers()):
        assert name in listed
    shown = run("methods", "margin").stdout
    assert "beta" in shown and "1.2" in shown and "Wu et al" in shown
    assert "candidates" in run("methods", "frd").stdout
    for typo, meant in (("margn", "margin"), ("infonc", "infonce")):
        assert f"Did you mean '{meant}'" in str(run("methods", typo).exception)
