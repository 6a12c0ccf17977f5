"""Where a target's images fall on the scale of an audit's splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oodml.data import Dataset
from oodml.shift import Placement, Split, place_target, shared_images
from oodml.study.audit.pictures import Pictures

MOST_ROWS = 250  # of a draw; half of the default, since an audit measures more splits in little time


def place(pictures: Pictures, splits: list[Split], target: tuple[Dataset, np.ndarray] | None = None) -> Placement:
    """Measure every split's sides against each other, and the target against all training images, at one size."""
    row_of = np.full(len(pictures.dataset), -1)
    row_of[pictures.rows] = np.arange(len(pictures.rows))
    sides = [
        (split.name, *(row_of[pictures.dataset.indices_of(names)] for names in (split.train, split.test)))
        for split in splits
    ]
    features = None if target is None else target[1]
    placed = place_target(pictures.features[pictures.rows], features, sides, most_rows=MOST_ROWS)
    if target is None:
        return placed
    shared = shared_images(pictures.dataset.source, pictures.features, target[0].source, target[1])
    return replace(placed, shared=shared, searched=len(pictures.dataset))


def by_rising_shift(splits: list[Split], placed: Placement) -> tuple[list[Split], Placement]:
    """The splits with their distance over images, the scale that a target is placed on, and named in its order.

    They were built by the distance of class means, whose order may be another.
    """
    spread_of = {spread.name: spread for spread in placed.splits}
    rising = sorted(splits, key=lambda split: spread_of[split.name].mean)
    named = [
        replace(split, name=built.name, fid=spread_of[split.name].mean, fid_mode="images")
        for built, split in zip(splits, rising, strict=True)
    ]
    spreads = [replace(spread_of[old.name], name=new.name) for old, new in zip(rising, named, strict=True)]
    return named, replace(placed, splits=spreads)
