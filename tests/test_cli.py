"""The command line as a whole: help, version, and errors of one line."""

import subprocess
import sys


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


def test_start_up_loads_no_model_library():
    code = "import sys, oodml, oodml.cli; assert not {'torch', 'timm', 'sklearn', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
