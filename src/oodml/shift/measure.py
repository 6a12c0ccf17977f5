"""Distances of given splits: between their sides, between data sets, and between random halves of the same classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml.shift._classes import ClassFeatures, group_by_class
from oodml.shift.frechet import fid
from oodml.shift.kernel import KID, kid
from oodml.shift.split import FID_MODES, Split


@dataclass(frozen=True)
class Measurement:
    """What a split looks like in a feature space."""

    fid: float
    kid: KID | None  # None with fewer than three points a side
    train_images: int
    test_images: int


class Ruler:
    """Measures splits of one data set with one set of features; `test` are those of another data set, if there is one.

    Features are grouped once, so that measuring eight splits costs eight distances.
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

    def points(self, split: Split, mode: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are compared: class means or images of each side."""
        mode = mode or split.fid_mode
        if mode not in FID_MODES:
            raise unknown_name("fid_mode", mode, FID_MODES)
        train, test = self._side(split, "train"), self._side(split, "test")
        if mode == "images":
            return self._train.rows(train), self._test.rows(test)
        return self._class_means(self._train)[train], self._class_means(self._test)[test]

    def fid(self, split: Split, mode: str | None = None) -> float:
        """Fréchet distance between the sides; `mode` defaults to the split's own."""
        return fid(*self.points(split, mode))

    def measure(self, split: Split, mode: str | None = None) -> Measurement:
        """Distances and sizes of the sides."""
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
    """Distances between random halves of the same classes."""

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
    """The distance that is left without any shift (ooDML, table 1): the images of every class halved at random.

    Classes with a single image go to neither half. Where an odd number is left, the spare image changes sides
    from class to class at random.
    """
    if repeats < 1:
        raise OodmlError(f"repeats must be at least 1, got {repeats}.")
    if fid_mode not in FID_MODES:
        raise unknown_name("fid_mode", fid_mode, FID_MODES)
    classes = group_by_class(features, labels, class_names)
    usable = np.flatnonzero(classes.sizes >= 2)
    if len(usable) < 2:
        raise OodmlError("The i.i.d. baseline needs at least two classes with two images or more each.")
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
    """The training classes of one data set against the test classes of another (ooDML, supplement C)."""
    if source.dataset == target.dataset:
        raise OodmlError(f"Both splits are of data set {source.dataset!r}; across data sets needs two different ones.")
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
