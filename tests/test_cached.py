"""The cache command: what is there, what goes, and what must stay."""

import os
import time

import numpy as np
from PIL import Image
from typer.testing import CliRunner

import oodml
from oodml._files import cache_entries
from oodml.cli import app
from oodml.cli import datasets as _command  # noqa: F401 - adds itself to the app
from oodml.data import load_images


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["cache", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_pictures_are_listed_removed_and_decoded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    assert run().strip() == "0 B in all"

    for number in range(4):
        file = tmp_path / "pictures" / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), 60 * number, np.uint8)).save(file)
    dataset = oodml.load_dataset("folder", root=tmp_path / "pictures")
    before = load_images(dataset, quiet=True).eval_view(np.arange(3))
    kept = tmp_path / "cache" / "studies" / "mine" / "result.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    (entry,) = cache_entries()
    assert entry.kind == "images"
    assert entry.size == sum(p.stat().st_size for p in entry.path.iterdir())
    assert entry.path.name in run()
    assert entry.place == str(tmp_path / "pictures")
    assert "pictures" in run()

    assert entry.path.exists()
    assert "removed" in run("--clear")
    assert not entry.path.exists()
    assert kept.exists()  # the only copy of somebody's results, perhaps
    assert (load_images(dataset, quiet=True).eval_view(np.arange(3)) == before).all()


def test_what_was_used_lately_can_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("OODML_CACHE", str(tmp_path))
    old, new = (tmp_path / "features" / f"{name}.safetensors" for name in ("old", "new"))
    old.parent.mkdir()
    for file in (old, new):
        file.write_bytes(b"x" * 2000)
    then = time.time() - 40 * 24 * 3600
    os.utime(old, (then, then))
    assert "features (2)" in run()
    assert "2 kB removed" in run("--clear", "--unused-for", "30")
    assert not old.exists()
    assert new.exists()
