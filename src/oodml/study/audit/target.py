"""Where a target's pictures fall on the scale of the splits, and whether they are new at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from oodml.data import Dataset
from oodml.shift import Split, place_target, similar_pairs, thumbnail_likeness
from oodml.study.audit.pictures import Pictures

DRAWS = 20
MOST_ROWS = 250  # of a draw, whose distance costs their cube
THUMBNAIL, LEAST_COSINE, SAME = 24, 0.9, 0.95


@dataclass(frozen=True)
class Placed:
    """Distances over images at one common number `n` of pictures a side: of every split, and of a target if there is
    one (to all training pictures)."""

    n: int
    fids: dict[str, float]
    target: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    pictures: int = 0
    shared: int = 0  # pictures of the target that stand in the training set too
    searched: int = 0  # the pictures of the training set that were looked at for that: a sample of a large folder


def place(pictures: Pictures, splits: list[Split], target: tuple[Dataset, np.ndarray] | None = None) -> Placed:
    """Measure every split's sides against each other, and the target against all training pictures, at one size."""
    row_of = np.full(len(pictures.dataset), -1)
    row_of[pictures.rows] = np.arange(len(pictures.rows))
    sides = [
        (split.name, *(row_of[pictures.dataset.indices_of(names)] for names in (split.train, split.test)))
        for split in splits
    ]
    used = pictures.features[pictures.rows]
    other = used if target is None else target[1]
    smallest = min(len(used), len(other), *(len(side) for _, *both in sides for side in both))
    found = place_target(used, other, sides, n=max(2, min(smallest // 2, MOST_ROWS)), draws=DRAWS)
    fids = {spread.name: spread.mean for spread in found.splits}
    if target is None:
        return Placed(found.n, fids)
    shared = shared_pictures(pictures.dataset, pictures.features, *target)
    return Placed(found.n, fids, found.target.mean, *found.target.interval(), len(other), shared, len(pictures.dataset))


def by_rising_shift(splits: list[Split], placed: Placed) -> tuple[list[Split], Placed]:
    """The splits with their distance over images, the scale that a target is placed on, and named in its order.

    They were built by the distance of class means, whose order may be another.
    """
    rising = sorted(splits, key=lambda split: placed.fids[split.name])
    named = [
        replace(split, name=built.name, fid=placed.fids[split.name], fid_mode="images")
        for built, split in zip(splits, rising, strict=True)
    ]
    return named, replace(placed, fids={split.name: split.fid or 0.0 for split in named})


def shared_pictures(dataset: Dataset, features: np.ndarray, target: Dataset, target_features: np.ndarray) -> int:
    """How many pictures of the target are in the training set too, by features first and then by thumbnails."""
    pairs = similar_pairs(features, target_features, least_cosine=LEAST_COSINE)
    if not pairs:
        return 0
    alike = thumbnail_likeness(
        thumbnails(dataset, [i for i, _, _ in pairs]), thumbnails(target, [j for _, j, _ in pairs])
    )
    return len({j for (_, j, _), score in zip(pairs, alike, strict=True) if score >= SAME})


def thumbnails(dataset: Dataset, indices: list[int]) -> np.ndarray:
    """(P, 24, 24, 3) small pictures, each decoded once."""
    small = {
        i: np.asarray(dataset.source.image(i, shrink_to=4 * THUMBNAIL).resize((THUMBNAIL, THUMBNAIL)).convert("RGB"))
        for i in sorted(set(indices))
    }
    return np.stack([small[i] for i in indices])
