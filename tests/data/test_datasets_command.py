from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import oodml.cli.datasets
from oodml import OodmlError
from oodml.cli import app
from oodml.data import ArraySource, build_dataset

assert oodml.cli.datasets  # registers the command


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["datasets", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_all_data_sets_are_listed():
    listed = run()
    assert all(name in listed for name in ("glyphs", "folder", "cub200", "cars196"))


def test_one_data_set_is_shown(birds: Path, cache: Path):
    shown = run("folder", "--root", str(birds))
    assert "18" in shown and "2 training and 2 test classes" in shown and "7 training, 11 test" in shown


def test_the_place_of_a_set_of_another_package_is_shown(capsys: pytest.CaptureFixture[str]):
    class Elsewhere(ArraySource):
        place = "s3://images"

    source = Elsewhere(np.zeros((4, 8, 8), np.uint8), list("abcd"))
    oodml.cli.datasets._print_dataset(build_dataset("elsewhere", source, ["x", "x", "y", "y"]))
    assert "s3://images" in capsys.readouterr().out


def test_a_path_will_do(birds: Path, cache: Path):
    assert run(str(birds)) == run("folder", "--root", str(birds))
    with pytest.raises(OodmlError, match=r"No folder or tar at .*nosuch"):
        run(str(birds / "nosuch"))


def test_check_reads_every_image(birds: Path, cache: Path):
    assert "all 18 images can be read" in run("folder", "--root", str(birds), "--check")
    (birds / "jay" / "1.jpg").write_text("broken")
    with pytest.raises(OodmlError, match=r"jay/1\.jpg"):
        run("folder", "--root", str(birds), "--check")


def test_check_notices_changed_pixels(birds: Path, cache: Path):
    run("folder", "--root", str(birds), "--check")
    (pixels,) = cache.rglob("pixels.bin")
    content = bytearray(pixels.read_bytes())
    content[7] ^= 1
    pixels.write_bytes(content)
    with pytest.raises(OodmlError, match="do not match their checksum"):
        run("folder", "--root", str(birds), "--check")


def test_options_without_a_name_are_refused():
    with pytest.raises(OodmlError, match="need the name"):
        run("--check")
