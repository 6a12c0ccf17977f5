"""The two figures of a series of splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from oodml import OodmlError, build_splits
from oodml.reporting.split_figures import TEST, TRAIN, draw_map, draw_progression, project

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(10), 6)
FEATURES = RNG.standard_normal((10, 5))[LABELS] + 0.1 * RNG.standard_normal((60, 5))


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def test_progression_shows_every_chosen_split(tmp_path: Path) -> None:
    splits = build_splits(FEATURES, LABELS, reverse=True, n_splits=4)
    steps = [dict(step) for step in splits.progression]
    draw_progression(tmp_path / "plain.png", steps)
    steps[-1]["chosen"] = 4
    draw_progression(tmp_path / "chosen.png", steps, "title")
    plain, chosen = (np.asarray(Image.open(tmp_path / f"{n}.png").convert("RGB")) for n in ("plain", "chosen"))
    assert not (plain == rgb(TEST)).all(axis=2).any()
    assert (chosen == rgb(TEST)).all(axis=2).any()
    with pytest.raises(OodmlError, match="no progression"):
        draw_progression(tmp_path / "none.png", [])
    assert not (tmp_path / "none.png").exists()


def test_map_colours_both_sides(tmp_path: Path) -> None:
    used = draw_map(tmp_path / "map.png", FEATURES, [("easy", np.arange(30), np.arange(30, 50))], method="pca")
    assert used == "pca"
    image = np.asarray(Image.open(tmp_path / "map.png").convert("RGB"))
    for colour in (TRAIN, TEST):
        assert (np.abs(image.astype(int) - rgb(colour)).sum(axis=2) < 60).any()


def test_projections_keep_groups_together() -> None:
    far = np.concatenate([FEATURES, FEATURES + 50])
    for method in ("tsne", "pca"):
        used, points = project(far, method)
        assert used == method
        assert points.shape == (120, 2)
        first, second = points[:60], points[60:]
        between = np.linalg.norm(first.mean(axis=0) - second.mean(axis=0))
        assert between > first.std() + second.std()
    with pytest.raises(OodmlError, match="Unknown projection"):
        project(FEATURES, "isomap")
