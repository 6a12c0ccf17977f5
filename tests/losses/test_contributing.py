"""CONTRIBUTING.md: its loss and its test work as they are printed; classes and options are found by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oodml
from oodml.losses import loss_records
from oodml.miners import miner_records

ROOT = Path(__file__).parents[2]
LOSS, TEST = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with the loss and its test copied verbatim."""
    ignored = shutil.ignore_patterns("__pycache__", "real", ".git", ".hypothesis")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src/oodml/losses/mine.py").write_text(LOSS, encoding="utf-8")
    (tmp_path / "tests/losses/test_mine.py").write_text(TEST, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_loss_passes_its_test_and_that_of_every_loss(copy: Path) -> None:
    pages = ["tests/losses/test_mine.py", "tests/losses/test_losses_page.py", "tests/losses/test_fidelity_page.py"]
    told = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *pages)
    assert "passed" in told and "failed" not in told
    every = ["tests/losses/test_every_loss.py", "-k", "mine and not compiled and not graph"]
    assert int(re.search(r"(\d+) passed", run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *every))[1]) > 10


@pytest.mark.long
def test_the_loss_passes_the_tests_of_losses_miners_and_methods(copy: Path) -> None:
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/losses", "tests/miners", "tests/methods")


def test_classes_are_found_in_a_fresh_process() -> None:
    program = "import oodml; print(oodml.losses.Margin(num_classes=3), oodml.miners.DistanceWeighted())"
    assert run(ROOT, "-c", program).startswith("Margin(")


def test_every_class_is_importable_and_has_the_miner_of_its_record() -> None:
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) // 2
    for package, records in ((oodml.losses, loss_records()), (oodml.miners, miner_records())):
        for record in records:
            if record.factory.__module__.startswith("oodml."):
                assert getattr(package, record.factory.__name__) is record.factory
                assert record.factory.__name__ in dir(package)
    for name, made in (("Triplet", oodml.losses.Triplet(miner="hard")), ("MultiSimilarity", None), ("SupCon", None)):
        made = made or getattr(oodml.losses, name)()
        by_name = oodml.make_loss(name.lower(), **({"miner": "hard"} if name == "Triplet" else {}))
        assert repr(made) == repr(by_name) and torch.equal(made(x, y), by_name(x, y))
    with pytest.raises(AttributeError, match="has no attribute 'Magrin'"):
        _ = oodml.losses.Magrin


@pytest.mark.long
def test_a_type_checker_knows_classes_and_options(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import oodml\n"
        'reveal_type(oodml.make_loss("margin", num_classes=3, beta=0.6))\n'
        'reveal_type(oodml.make_miner("distance", upper=None))\n'
        "reveal_type(oodml.losses.Margin(num_classes=3))\n"
        "oodml.losses.Triplet(margn=0.1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--ignore-missing-imports", str(program)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.stdout.count('Revealed type is "oodml.losses.margin.Margin"') == 2
    assert 'Revealed type is "oodml.miners.distance.DistanceWeighted"' in done.stdout
    assert 'Unexpected keyword argument "margn"' in done.stdout
