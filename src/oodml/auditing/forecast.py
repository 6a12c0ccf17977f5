"""Where a target's images are on the scale of a study's splits, and the recall to expect there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml.auditing.images import target_features
from oodml.data import Dataset
from oodml.models import extract_features
from oodml.shift import Placement, Split, place_target, shared_images
from oodml.study import load_study
from oodml.study.encoders import splits_and_images
from oodml.study.forecast import forecast_file
from oodml.study.leaderboard import METRIC, ranking
from oodml.study.splits import smallest_test_set
from oodml.study.store import Store, open_store

MOST_ROWS = 250  # per draw; half of the default, because an audit measures many splits in a short time


def forecast_target(
    folder: str | Path | Store,
    target: Dataset | str | Path,
    name: str = "target",
    backbone: str = "tf_efficientnet_lite0",
    method: str | None = None,
    quiet: bool = False,
) -> tuple[Placement, dict[str, Any]]:
    """Place the target on the scale of a study's splits and read the recall to expect there off a method's curve.

    All distances are over images at one common size, between features of `backbone`. `method` defaults to the best one
    of the study. Writes forecast.json into the study's folder; returns the placement and what was written. Warns of a
    target with few or unreadable images.
    """
    store = open_store(folder)
    table = load_study(store)
    chosen = method or next(iter(ranking(table, METRIC)), None)
    if chosen is None:
        raise OodmlError("No method of the study has finished on every split yet, so there is no curve to read.")
    if chosen not in table.methods:
        raise unknown_name("method of the study:", chosen, table.methods)
    splits, dataset = splits_and_images(store, quiet)
    features = extract_features(dataset, backbone, quiet=quiet)
    notes: list[str] = []
    placed = place(dataset, features, np.arange(len(dataset)), splits, target_features(target, backbone, notes, quiet))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    assert placed.target is not None  # a target was given
    gallery = smallest_test_set(splits, dataset)
    found = forecast_file(table, chosen, METRIC, gallery, placed.fids, (name, placed.target.mean))
    store.write_json("forecast.json", found)
    return placed, found


def place(
    dataset: Dataset,
    features: np.ndarray,
    rows: np.ndarray,
    splits: Sequence[Split],
    target: tuple[Dataset, np.ndarray] | None = None,
) -> Placement:
    """Measure the two sides of every split against each other, and the target against all images in `rows`, at one
    size; find the images that the target shares with the dataset."""
    row_of = np.full(len(dataset), -1)
    row_of[rows] = np.arange(len(rows))
    sides = [
        (split.name, *(row_of[dataset.indices_of(names)] for names in (split.train, split.test))) for split in splits
    ]
    placed = place_target(features[rows], None if target is None else target[1], sides, most_rows=MOST_ROWS)
    if target is None:
        return placed
    shared = shared_images(dataset.source, features, target[0].source, target[1])
    return replace(placed, shared=shared, searched=len(dataset))


def by_rising_shift(splits: Sequence[Split], placed: Placement) -> tuple[list[Split], Placement]:
    """The splits with their distance over images, on whose scale a target is placed, named in its order.

    They were built by the distance of class means, whose order may differ.
    """
    spread_of = {spread.name: spread for spread in placed.splits}
    rising = sorted(splits, key=lambda split: spread_of[split.name].mean)
    named = [
        replace(split, name=f"shift-{number}", fid=spread_of[split.name].mean, fid_mode="images")
        for number, split in enumerate(rising, 1)
    ]
    spreads = [replace(spread_of[old.name], name=new.name) for old, new in zip(rising, named, strict=True)]
    return named, replace(placed, splits=spreads)
