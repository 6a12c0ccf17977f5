"""Distances of given splits: between their sides, between random halves of the same classes, in two feature spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._split import FID_MODES, Split, as_split, as_splits
from oodml.shift._features import ClassFeatures, group_by_class
from oodml.shift.frechet import fid
from oodml.shift.kernel import KID, kid


@dataclass(frozen=True)
class Measurement:
    """Distances and sizes of a split in one feature space."""

    fid: float
    kid: KID | None  # None with fewer than three points per side
    train_images: int
    test_images: int


class SplitDistances:
    """Distances of splits in one feature space; `test`: (features, labels, class names) of a second dataset, if any.

    Features are grouped once, so that eight splits cost eight distances.
    """

    def __init__(
        self,
        features: Any,
        labels: Any,
        class_names: Sequence[str] | None = None,
        test: tuple[Any, Any, Sequence[str] | None] | None = None,
    ) -> None:
        self._train = group_by_class(features, labels, class_names)
        self._test = self._train if test is None else group_by_class(*test)
        self._means: dict[int, np.ndarray] = {}

    def points(self, split: Split | str | Path, mode: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are compared: class means or images of each side."""
        split = as_split(split)
        mode = mode or split.fid_mode
        if mode not in FID_MODES:
            raise unknown_name("fid_mode", mode, FID_MODES)
        train, test = self._side(split, "train"), self._side(split, "test")
        if mode == "images":
            return self._train.rows(train), self._test.rows(test)
        return self._class_means(self._train)[train], self._class_means(self._test)[test]

    def fid(self, split: Split | str | Path, mode: str | None = None) -> float:
        """Fréchet distance between the sides; `mode` defaults to the split's own."""
        return fid(*self.points(split, mode))

    def measure(self, split: Split | str | Path, mode: str | None = None) -> Measurement:
        """Distances and sizes of the sides."""
        split = as_split(split)
        a, b = self.points(split, mode)
        sizes = self._train.sizes[self._side(split, "train")], self._test.sizes[self._side(split, "test")]
        second = kid(a, b) if min(len(a), len(b)) >= 3 else None
        return Measurement(fid(a, b), second, int(sizes[0].sum()), int(sizes[1].sum()))

    def _side(self, split: Split, side: str) -> np.ndarray:
        classes = self._train if side == "train" else self._test
        return classes.positions(getattr(split, side), f"the {side} side of split {split.name!r}")

    def _class_means(self, classes: ClassFeatures) -> np.ndarray:
        if id(classes) not in self._means:
            self._means[id(classes)] = classes.means()
        return self._means[id(classes)]


@dataclass(frozen=True)
class Baseline:
    """FIDs between random halves of the same classes."""

    values: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def sd(self) -> float:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")


def iid_baseline(
    features: Any,
    labels: Any,
    *,
    class_names: Sequence[str] | None = None,
    repeats: int = 10,
    fid_mode: str = "class-means",
    seed: int = 0,
) -> Baseline:
    """The distance without any shift (ooDML, table 1): the images of every class halved at random.

    Classes with a single image go to neither half. With an odd number of images, the larger half is drawn at random.
    """
    if repeats < 1:
        raise OodmlError(f"repeats must be at least 1, got {repeats}.")
    if fid_mode not in FID_MODES:
        raise unknown_name("fid_mode", fid_mode, FID_MODES)
    classes = group_by_class(features, labels, class_names)
    usable = np.flatnonzero(classes.sizes >= 2)
    if len(usable) < 2:
        raise OodmlError("The i.i.d. baseline needs at least two classes of two images or more.")
    ids = np.repeat(np.arange(len(classes.names)), classes.sizes)
    keep = np.isin(ids, usable)
    order, ids = classes.order[keep], ids[keep]
    values = []
    for repeat in range(repeats):
        in_first = _random_halves(ids, np.random.default_rng([seed, repeat]))
        halves = [group_by_class(classes.features[order[chosen]], ids[chosen]) for chosen in (in_first, ~in_first)]
        rows = [half.means() if fid_mode == "class-means" else half.features for half in halves]
        values.append(fid(rows[0], rows[1]))
    return Baseline(values)


def _random_halves(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mask of a random half of the images of every class; `ids` are sorted."""
    shuffled = np.lexsort((rng.random(len(ids)), ids))
    sizes = np.bincount(ids)
    rank = np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    spare = rng.integers(0, 2, len(sizes))
    in_first = np.empty(len(ids), dtype=bool)
    in_first[shuffled] = rank < ((sizes + spare) // 2)[ids]
    return in_first


def across_datasets(source: Split, target: Split, **facts: Any) -> Split:
    """The training classes of one dataset against the test classes of another (ooDML, supplement C)."""
    if source.dataset == target.dataset:
        raise OodmlError(f"Both splits are of the dataset {source.dataset!r}: give splits of two different datasets.")
    return Split(
        train=source.train,
        val=source.val,
        test=target.test,
        name=f"{source.dataset}-to-{target.dataset}",
        dataset=source.dataset,
        test_dataset=target.dataset,
        provenance={"made_by": "oodml.shift.across_datasets", "train_of": source.name, "test_of": target.name},
        **facts,
    )


@dataclass(frozen=True)
class Agreement:
    """How well two feature spaces agree on the same splits.

    rank_correlation  Spearman's ρ of the distances of all splits of both series, measured in both spaces
    curve_gap         largest difference of the distances scaled to [0, 1], over the same splits
    same_side         per pair of splits (first of A with first of B, …): share of the common classes on the same side
    same_side_chance  what independent assignments with these side sizes would give
    """

    rank_correlation: float
    curve_gap: float
    same_side: list[float]
    same_side_chance: list[float]
    fids_a: list[float]  # distances in space A of A's splits, then of B's
    fids_b: list[float]


def agreement(
    splits_a: Sequence[Split] | str | Path,
    space_a: SplitDistances,
    splits_b: Sequence[Split] | str | Path,
    space_b: SplitDistances,
) -> Agreement:
    """Compare two series of splits (or their files) built from the same classes in two feature spaces."""
    from scipy.stats import spearmanr

    splits_a, splits_b = as_splits(splits_a), as_splits(splits_b)
    every = [*splits_a, *splits_b]
    if len(every) < 3:
        raise OodmlError(f"A rank correlation of {len(every)} splits has no meaning; compare at least three in all.")
    a = [space_a.fid(split) for split in every]
    b = [space_b.fid(split) for split in every]
    shares = [_same_side(first, second) for first, second in zip(splits_a, splits_b, strict=False)]
    return Agreement(
        rank_correlation=float(spearmanr(a, b).statistic),
        curve_gap=float(np.abs(_scaled(a) - _scaled(b)).max()),
        same_side=[share for share, _ in shares],
        same_side_chance=[chance for _, chance in shares],
        fids_a=a,
        fids_b=b,
    )


def _scaled(values: Sequence[float]) -> np.ndarray:
    low, high = min(values), max(values)
    return (np.asarray(values) - low) / (high - low) if high > low else np.zeros(len(values))


def _same_side(a: Split, b: Split) -> tuple[float, float]:
    """Share of common classes on the same side, and its expectation under independence.

    The names of the sides are arbitrary, so the better of the two assignments counts.
    """
    common = sorted((set(a.train) | set(a.test)) & (set(b.train) | set(b.test)))
    if not common:
        return float("nan"), float("nan")
    in_a, in_b = (np.isin(common, split.train) for split in (a, b))
    share = float(np.mean(in_a == in_b))
    p, q = float(in_a.mean()), float(in_b.mean())
    chance = p * q + (1 - p) * (1 - q)
    return max(share, 1 - share), max(chance, 1 - chance)
