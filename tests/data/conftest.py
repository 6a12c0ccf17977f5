"""Images on disk for the tests of this room, and a cache of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REAL_DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OODML_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def glyphs_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which glyphs are drawn once for all tests."""
    return tmp_path_factory.mktemp("glyphs-cache")


@pytest.fixture
def glyphs(glyphs_cache: Path, monkeypatch: pytest.MonkeyPatch):
    import oodml

    monkeypatch.setenv("OODML_CACHE", str(glyphs_cache))
    return oodml.load_dataset("glyphs", quiet=True)


@pytest.fixture
def image() -> Callable[..., Image.Image]:
    """A smooth random image: `image(seed, width, height)`."""

    def make(seed: int = 0, width: int = 40, height: int = 30) -> Image.Image:
        small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)

    return make


@pytest.fixture
def birds(tmp_path: Path, image: Callable[..., Image.Image]) -> Path:
    """Four class folders of 3, 4, 5 and 6 images of different sizes and kinds of files."""
    root = tmp_path / "birds"
    for c, (name, count) in enumerate({"crow": 3, "gull": 4, "jay": 5, "wren": 6}.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            ending = ("png", "jpg", "webp", "bmp")[i % 4]
            image(10 * c + i, 30 + 3 * i, 50 - 4 * i).save(root / name / f"{i}.{ending}")
    return root


@pytest.fixture
def real_data() -> Path:
    if not (REAL_DATA / "cub200.tar").is_file():
        pytest.skip(f"the real datasets are not at {REAL_DATA}")
    return REAL_DATA
