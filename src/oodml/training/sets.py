"""Which images a run fits, validates and tests on, from a data set, a split and the way of selection."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oodml._errors import OodmlError
from oodml.config import as_split
from oodml.data import Dataset
from oodml.shift import Split

VALIDATION_SHARE = 0.25


@dataclass(frozen=True)
class Sets:
    """Positions of images in the data set."""

    fit: np.ndarray  # trained on
    train: np.ndarray  # all train classes, validation included
    val: np.ndarray  # empty unless the selection holds classes out
    test: np.ndarray
    fit_labels: np.ndarray  # labels of `fit`, 0 .. number of its classes - 1

    @property
    def num_classes(self) -> int:
        return int(self.fit_labels.max()) + 1


def choose_split(dataset: Dataset, split: object) -> Split:
    """The split a run uses, checked against the data set."""
    chosen = dataset.default_split if split == "default" else as_split(split)
    if chosen.test_dataset is not None:
        raise OodmlError(
            f"The split {chosen.name!r} tests on another data set ({chosen.test_dataset!r}); train runs on one. "
            "Train with a split of this set, then evaluate the run on the other one."
        )
    return chosen


def choose_sets(dataset: Dataset, split: Split, hold_out: bool) -> Sets:
    """Images by role; `hold_out` keeps the split's validation classes (or a quarter of the train classes) apart."""
    train, test = dataset.indices_of(split.train), dataset.indices_of(split.test)
    val_classes = held_out(split) if hold_out else []
    val = dataset.indices_of(val_classes) if val_classes else np.empty(0, dtype=np.int64)
    if hold_out and len(found := np.unique(dataset.labels[val])) < 2:
        raise OodmlError(
            f"Of the {len(val_classes)} validation classes of the split {split.name!r} {len(found)} can be read from "
            f"{dataset.name!r}, and a model is chosen on two at least. Repair their pictures "
            f"({', '.join(val_classes[:3])}{', …' if len(val_classes) > 3 else ''}), give other validation classes, or "
            "use selection='last', which holds none out."
        )
    fit = np.setdiff1d(train, val)
    classes, fit_labels = np.unique(dataset.labels[fit], return_inverse=True)
    if len(classes) < 2:
        raise OodmlError(
            f"Training needs at least two classes; the split {split.name!r} of {dataset.name!r} leaves {len(classes)}. "
            "Use a split with more train classes, or selection='last', which holds none out."
        )
    return Sets(fit, train, val, test, fit_labels.astype(np.int64))


def held_out(split: Split) -> list[str]:
    """The validation classes of a split: its own, or a quarter of its train classes."""
    classes = list(split.val or validation_classes(split.train))
    if len(classes) == 1:
        raise OodmlError(
            f"The split {split.name!r} has one validation class, {classes[0]!r}, on which every model scores 1. "
            "Give it two or more, or use selection='last', which holds none out."
        )
    return classes


def validation_classes(train: Sequence[str], share: float = VALIDATION_SHARE) -> list[str]:
    """A quarter of the train classes, at least two: the same for every seed, method and order of the names."""
    count = max(2, round(share * len(train)))
    if len(train) - count < 2:
        raise OodmlError(
            f"{len(train)} train classes are too few to hold some out for validation (two each are needed). "
            "Use selection='last', or 'test' as the papers do."
        )
    return sorted(sorted(train, key=_shuffling)[:count])


def _shuffling(name: str) -> bytes:
    """A key to sort names by that has nothing to do with their order; also of names that are no UTF-8."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
