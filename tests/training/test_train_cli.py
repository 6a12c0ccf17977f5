"""`oodml train`, `oodml methods`, `oodml evaluate --run`: thin, but they must say the right things."""

import json

import pytest
from typer.testing import CliRunner

import oodml
from oodml.cli import evaluate, methods, train  # noqa: F401 - registers the commands
from oodml.cli._app import app


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
    assert "patterns · triplet · seed 0" in done.output
    assert "scored: 64 images of 8 classes" in run("evaluate", "--run", folder, "--metrics", "recall@1").output
    again = run("evaluate", "--run", folder, "--metrics", "recall@1", "--json")
    found = json.loads(again.stdout)["scores"]["recall@1"]
    assert found == pytest.approx(data["selected"]["scores"]["recall@1"], abs=1e-6)


def test_of_several_processes_one_speaks(tmp_path, settings, monkeypatch):
    settings(steps=2).save(tmp_path / "config.yaml")
    words = ("train", str(tmp_path / "config.yaml"))
    assert "recall@1" in run(*words).stdout
    monkeypatch.setenv("RANK", "1")  # as torchrun numbers them
    assert run(*words).stdout == ""


@pytest.mark.parametrize("words", [("--method", "margn"), ("--set", "lrr=1"), ("--set", "lr"), ("--train", "heads")])
def test_mistakes_are_one_sentence(words):
    done = run("train", *words)
    assert isinstance(done.exception, oodml.OodmlError)


def test_methods_lists_everything_and_explains_one():
    listed = run("methods").stdout
    for name in (*oodml.list_methods(), *oodml.list_losses(), *oodml.list_miners()):
        assert name in listed
    told = run("methods", "margin").stdout
    assert "beta" in told and "1.2" in told and "Wu et al" in told
    assert isinstance(run("methods", "margn").exception, oodml.OodmlError)
