"""The command line as a whole: help, version, and errors of one line."""

import importlib
import pkgutil
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import oodml
import oodml.cli
from oodml.cli._app import app, method_name, resumable
from oodml.training import Interrupted

for module in pkgutil.iter_modules(oodml.cli.__path__):
    importlib.import_module(f"oodml.cli.{module.name}")  # they add their commands


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", "from oodml.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    for command in ("demo", "datasets", "features", "splits", "shift", "train", "evaluate", "methods"):
        assert command in done.stdout


def test_an_error_is_one_sentence_without_a_traceback():
    done = run("datasets", "gliphs")
    assert done.returncode == 2
    assert "Did you mean 'glyphs'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("error", ["MemoryError('72 GiB')", "RuntimeError('[enforce] can\\'t allocate memory')"])
def test_a_lack_of_memory_is_one_sentence(error):
    code = f"import oodml.cli as c\ndef app(): raise {error}\nc.app = app\nc.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "not enough memory" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [("features", "glyphs"), ("evaluate", "x.npz"), ("fewshot", "run"), ("train",)]
    + [("splits", name, "glyphs") for name in ("build", "iid", "episodes")],
)
def test_a_seed_is_no_negative_number(command):
    done = CliRunner().invoke(app, [*command, "--seed", "-1"])
    assert done.exit_code == 2 and "'--seed'" in done.output


def test_a_folder_instead_of_settings_is_answered_with_what_to_do(tmp_path):
    done = CliRunner().invoke(app, ["train", str(tmp_path)])
    assert isinstance(done.exception, oodml.OodmlError) and f"oodml train --dataset {tmp_path}" in str(done.exception)


def test_a_demo_is_not_scattered_among_other_files(tmp_path):
    (tmp_path / "mine.txt").touch()
    done = CliRunner().invoke(app, ["demo", "--small", "--out", str(tmp_path)])
    assert isinstance(done.exception, oodml.OodmlError) and "mine.txt" in str(done.exception)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


def test_start_up_loads_no_model_library():
    code = "import sys, oodml, oodml.cli; assert not {'torch', 'timm', 'sklearn', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def trained_with(monkeypatch):
    """`oodml train` without training: gives the settings it would have trained with."""
    seen = []

    def stop(settings):
        seen.append(settings)
        raise Interrupted("enough")

    monkeypatch.setattr("oodml.training.train", stop)

    def call(*words):
        assert CliRunner().invoke(app, ["train", *map(str, words)]).exit_code == 130
        return seen[-1].dataset

    return call


def test_a_root_leaves_the_data_set_of_the_settings_as_it_is(trained_with, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("dataset: cub200\n")
    assert trained_with(config, "--root", "here") == {"name": "cub200", "root": "here"}
    assert trained_with(config, "--root", "here", "--dataset", "cars196") == {"name": "cars196", "root": "here"}
    config.write_text("dataset: {name: folder, root: there, images_per_class: 5}\n")
    assert trained_with(config, "--root", "here") == {"name": "folder", "root": "here", "images_per_class": 5}
    config.write_text("seed: 1\n")
    assert trained_with(config, "--root", "here") == {"name": "folder", "root": "here"}
    assert trained_with("--root", "here") == {"name": "folder", "root": "here"}
    assert trained_with("--dataset", tmp_path) == {"name": "folder", "root": str(tmp_path)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", "nosuch"], "There is no folder nosuch"),
        (["--run", ".", "--device", "tpu"], "device='tpu' is not a device of torch"),
        (["--run", "nosuch", "--device", "tpu"], "There is no folder nosuch"),
        (["--run", "nosuch", "--dataset", "glyfs"], "is not a dataset"),
        (["--run", "r", "--root", "/nonexistent"], "give --dataset too"),
        (["file.npz", "--run", "r"], "give one of them"),
        (["file.npz", "--dataset", "glyphs", "--split", "default"], "--dataset, --split say what a run is tested on"),
        (["file.npz", "--root", "here"], "give --run too"),
        ([], "Give a file of embeddings"),
    ],
)
def test_evaluate_refuses_what_it_would_ignore(words, message):
    done = CliRunner().invoke(app, ["evaluate", *words])
    assert isinstance(done.exception, oodml.OodmlError) and message in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dims", "a"], "--dims 'a': give whole numbers separated by commas"),
        (["--dims", ","], "--dims ',': give whole numbers"),
        (["--dims", "8,-4"], "an embedding has one dimension or more; leave -4 out"),
    ],
)
def test_retrieval_time_refuses_sizes_that_are_none(words, message):
    done = CliRunner().invoke(app, ["retrieval-time", "--images", "20", *words])
    assert isinstance(done.exception, oodml.OodmlError) and message in str(done.exception)


@pytest.mark.parametrize("images", ["0", "1"])
def test_retrieval_time_needs_something_to_find(images):
    done = CliRunner().invoke(app, ["retrieval-time", "--dims", "4", "--images", images])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    "command",
    [
        ("report",),
        ("report", "study", "--figures"),
        ("study", "show"),
        ("study", "leaderboard"),
        ("study", "run", "glyphs", "--out"),
        ("tune", "margin", "--out"),
        ("audit", "pictures", "--out"),
        ("demo", "--out"),
        ("splits", "show", "splits.json", "--out"),
        ("pretrained", "--study"),
    ],
)
def test_a_file_where_a_folder_is_wanted_is_called_a_file(command, tmp_path):
    file = tmp_path / "afile.txt"
    file.touch()
    done = CliRunner().invoke(app, [*command, str(file)])
    assert isinstance(done.exception, oodml.OodmlError) and str(done.exception) == f"{file} is a file; give a folder."


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ({"name": "plain", "loss": "triplet"}, "triplet"),
        ({"name": "plain", "loss": {"name": "margin", "beta": 0.6}}, "margin"),
        ({"name": "sharing", "base": "triplet"}, "sharing"),
        (None, "margin"),
    ],
)
def test_a_run_of_one_loss_is_called_by_it(method, name):
    assert method_name(method) == name


def test_who_stops_work_that_goes_on_is_told_so(capsys):
    with pytest.raises(typer.Exit) as left, resumable():
        raise KeyboardInterrupt
    assert left.value.exit_code == 130 and "Run the same command to resume" in capsys.readouterr().err
    with pytest.raises(typer.Exit) as left, resumable():
        raise Interrupted("Stopped", "SIGTERM")
    assert left.value.exit_code == 143


ABSENT = [
    ("datasets", "nosuch/x"),
    ("features", "nosuch/x"),
    ("shift", "nosuch/x", "glyphs"),
    ("shift", "glyphs", "nosuch/x"),
    ("splits", "build", "nosuch/x"),
    ("splits", "across", "glyphs", "nosuch/x"),
    ("splits", "compare", "nosuch/x", "tiny", "tiny"),
    ("splits", "show", "nosuch/x.json"),
    ("splits", "import", "nosuch/x.pkl", "cub200"),
    ("evaluate", "nosuch/x.npz"),
    ("evaluate", "--run", "nosuch/x"),
    ("evaluate", "--run", ".", "--dataset", "nosuch/x"),
    ("pretrained", "nosuch/x"),
    ("pretrained", "--study", "nosuch/x"),
    ("tune", "margin", "--config", "nosuch/x.yaml"),
    ("tune", "margin", "--dataset", "nosuch/x"),
    ("study", "run", "nosuch/x.yaml"),
    ("study", "plan", "demo-glyphs", "--dataset", "nosuch/x"),
    ("study", "show", "nosuch/x"),
    ("study", "status", "nosuch/x"),
    ("study", "score", "nosuch/x", "tiny"),
]


def test_a_mistyped_path_is_reported_before_torch_is_imported():
    code = f"""
import contextlib, importlib, pkgutil, sys
import oodml.cli
from oodml import OodmlError

for module in pkgutil.iter_modules(oodml.cli.__path__):
    importlib.import_module("oodml.cli." + module.name)
for words in {ABSENT}:
    try:
        oodml.cli.app(words, standalone_mode=False)
    except OodmlError as error:
        assert "nosuch/x" in str(error), (words, error)
    else:
        raise AssertionError(words)
    assert not {{"torch", "timm", "matplotlib"}} & set(sys.modules), words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def all_commands(group=None, path=()):
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), {opt: option for option in command.params for opt in option.opts}


def test_the_same_option_has_the_same_form_on_every_command():
    for name, options in all_commands():
        assert not {"--output", "--test-root", "--train-root", "--generic"} & options.keys(), name
        if name != "train":  # its default is in RunConfig
            assert "--device" not in options or options["--device"].default == "auto", name
        assert "--splits" not in options or options["--splits"].default == "default", name  # a file, never a count
        assert "-n" not in options or "--n-splits" in options["-n"].opts, name
        assert "--quiet" not in options or options["--quiet"].default is False, name
        assert "-o" not in options or "--out" in options["-o"].opts, name


@pytest.mark.parametrize(
    ("old", "new"), [("fewshot", "few-shot"), ("study search", "tune"), ("study retrieval-time", "retrieval-time")]
)
def test_names_of_commands_that_were_published_are_hidden_aliases(old, new):
    shown = CliRunner().invoke(app, [*old.split(), "--help"])
    assert shown.exit_code == 0 and dict(all_commands())[old].keys() == dict(all_commands())[new].keys()
    listed = CliRunner().invoke(app, [*old.split()[:-1], "--help"]).stdout
    assert f" {old.split()[-1]} " not in listed
