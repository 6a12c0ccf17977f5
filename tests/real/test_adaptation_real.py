"""Adaptation on real photographs: CARS196, official splits 1 and 8, EfficientNet-Lite0, heads on cached features.

Marked `long`: the features of 2,352 pictures are computed the first time (the published set-up, with every picture, ten
episodes and all steps, is benchmarks/adaptation_real.py; its tables are in docs/results/adaptation.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import oodml
from oodml.data import register_dataset
from oodml.shift import Split, load_official

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(not (SHARED / "cars196.tar").exists(), reason=f"no real data in {SHARED}"),
    pytest.mark.filterwarnings("ignore:.*copy of.*:UserWarning"),
]


@pytest.fixture(scope="module")
def cars() -> oodml.Dataset:
    data = oodml.load_dataset("cars196", root=SHARED / "cars196.tar").sample(12)
    register_dataset("cars196-sample", lambda: data, replace=True, summary="Twelve pictures of every car.")
    return data


def official(number: int) -> Split:
    return load_official(SHARED / "oodml_official_splits.json", "cars196")[number - 1]


@pytest.fixture(scope="module")
def gains(cars: oodml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[int, oodml.adaptation.FewShot]:
    found = {}
    for number in (1, 8):
        config = oodml.RunConfig(
            dataset="cars196-sample", split=official(number), backbone="tf_efficientnet_lite0", train="head", views=0,
            embedding_dim=256, steps=400, metrics=("recall@1",), quiet=True, device="cpu",
            out=str(tmp_path_factory.mktemp("cars") / "run"),
        )  # fmt: skip
        run = oodml.train(config, cars).path
        found[number] = oodml.few_shot(
            run, official(number), 5, 4, dataset=cars, steps=400, metrics=["map@1000"], device="cpu", quiet=True
        )
    return found


def test_adaptation_is_worth_more_under_a_larger_shift(gains: dict[int, oodml.adaptation.FewShot]) -> None:
    """The papers' finding: relative to what the run scores without, five images of a class bring more on split 8."""
    easy, hard = (gains[n].gain("map@1000").mean / gains[n]["zero"]["map@1000"].mean for n in (1, 8))
    assert hard > easy, (easy, hard)
    assert hard > 0, hard


def test_generic_features_fall_with_the_shift_at_a_common_size(cars: oodml.Dataset) -> None:
    splits = [official(number) for number in (1, 5, 8)]
    smallest = min(len(split.test) for split in splits)
    rows = oodml.evaluate_pretrained(
        cars, splits, metrics=["recall@1", "recall@1:matched"], match=(smallest, 12), forms=["normalised"], quiet=True
    )
    matched = [row.scores["recall@1:matched"] for row in rows]
    assert matched[0] > matched[1] > matched[2], matched
