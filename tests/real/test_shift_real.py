"""Shift on real photographs: CARS196 and CUB-200-2011 described by EfficientNet-Lite0.

The quick checks use eight pictures a class; those marked `long` use every picture, as the published numbers do
(about four minutes of feature extraction the first time, cached afterwards).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import oodml
from oodml.data import Dataset
from oodml.shift import SplitDistances, iid_baseline, load_official, load_official_episodes, resolve_episodes

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not (SHARED / "cars196.tar").exists(), reason=f"no real data in {SHARED}"),
    pytest.mark.filterwarnings("ignore:.*copy of.*:UserWarning"),
]


def described(name: str, images_per_class: int | None = None) -> tuple[Dataset, np.ndarray]:
    ds = oodml.load_dataset(name, root=SHARED / f"{name}.tar")
    if images_per_class is not None:
        ds = ds.sample(images_per_class)
    return ds, oodml.extract_features(ds, backbone="tf_efficientnet_lite0")


@pytest.fixture(scope="module")
def few_cars() -> tuple[Dataset, np.ndarray]:
    return described("cars196", 8)


@pytest.fixture(scope="module")
def cars() -> tuple[Dataset, np.ndarray]:
    return described("cars196")


def official_cars() -> list[oodml.Split]:
    return load_official(SHARED / "oodml_official_splits.json", "cars196")


def test_the_official_files_are_read() -> None:
    splits = official_cars()
    assert [s.name for s in splits] == [f"official-{i}" for i in range(1, 9)]
    assert [len(s.val) for s in splits] == [25, 25, 25, 25, 25, 22, 19, 16]
    assert [round(s.fid or 0, 1) for s in splits] == [8.6, 14.3, 32.2, 43.6, 63.3, 86.1, 101.2, 123.0]
    birds = load_official(SHARED / "oodml_official_splits.json", "cub200")
    assert [(s.name, len(s.train), len(s.test)) for s in birds] == [("official-3", 100, 100)]


def test_official_splits_rise_and_the_builder_goes_beyond(few_cars: tuple[Dataset, np.ndarray]) -> None:
    ds, features = few_cars
    space = SplitDistances(features, ds.labels, ds.classes)
    for mode in ("class-means", "images"):
        distances = [space.fid(split, mode) for split in official_cars()]
        assert all(a < b for a, b in itertools.pairwise(distances))
    built = oodml.build_splits(features, ds.labels, class_names=ds.classes, start=ds.default_split)
    assert built[0].train == sorted(official_cars()[0].train)
    assert built[-1].fid > space.fid(official_cars()[-1])
    assert built[0].fid == pytest.approx(space.fid(official_cars()[0]), rel=1e-9)


def test_official_episodes_are_counted_where_no_name_exists() -> None:
    """The authors numbered the files of their own archive; here they have other numbers, so none resolves."""
    ds = oodml.load_dataset("cars196", root=SHARED / "cars196.tar")
    published = load_official_episodes(SHARED / "oodml_official_fewshot.json.gz", "cars196")
    taken = resolve_episodes(official_cars()[0], ds, published["1"])
    assert taken.offered == 30
    assert taken.asked == 98 * (2 + 5 + 10) * 10
    assert (taken.found, taken.complete) == (0, 0)
    assert taken.split.episodes == {}


@pytest.mark.long
def test_every_picture_gives_the_published_order_and_the_known_distances(cars: tuple[Dataset, np.ndarray]) -> None:
    ds, features = cars
    space = SplitDistances(features, ds.labels, ds.classes)
    distances = [space.fid(split) for split in official_cars()]
    assert all(a < b for a, b in itertools.pairwise(distances))
    assert distances[0] == pytest.approx(4.8, abs=0.1)
    assert distances[-1] == pytest.approx(52.9, abs=0.5)
    assert space.fid(official_cars()[-1], "images") == pytest.approx(67.3, abs=0.7)


@pytest.mark.long
def test_cars_by_swapping_and_by_removal(cars: tuple[Dataset, np.ndarray]) -> None:
    ds, features = cars
    built = oodml.build_splits(features, ds.labels, class_names=ds.classes, start=ds.default_split)
    assert built[0].fid == pytest.approx(4.8, abs=0.1)
    assert max(step["fid"] for step in built.progression if step["stage"] == "swap") >= 30
    assert built[-1].fid >= 60
    assert sum(built[-1].provenance["images"]) >= len(ds) / 2


@pytest.mark.long
def test_random_halves_of_the_same_classes_are_nearer_than_the_default_split() -> None:
    for name in ("cars196", "cub200"):
        ds, features = described(name)
        halves = iid_baseline(features, ds.labels, class_names=ds.classes, repeats=5)
        default = oodml.Split(ds.default_split.train, ds.default_split.test)
        assert halves.mean + 3 * halves.sd < SplitDistances(features, ds.labels, ds.classes).fid(default)
