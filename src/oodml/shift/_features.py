"""Feature arrays and labels: checked, and grouped by class independently of the order of the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name

_ROWS = 4096  # rows gathered and summed at a time


def feature_rows(features: Any, name: str = "features", at_least: int = 1) -> np.ndarray:
    """`features` as a finite (N, D) array of floats; a tensor on any device is accepted."""
    if hasattr(features, "detach"):
        features = features.detach().cpu()
        half = features.is_floating_point() and features.itemsize < 4
        features = (features.float() if half else features).numpy()  # NumPy has no bfloat16
    rows = np.asarray(features)
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.number) or np.iscomplexobj(rows):
        raise OodmlError(
            f"{name} must be numbers, one row per image: shape (N, D); got shape {rows.shape} of {rows.dtype}."
        )
    if len(rows) < at_least or rows.shape[1] == 0:
        raise OodmlError(
            f"{name} needs at least {at_least} rows and one column to be compared as a set; got shape {rows.shape}."
        )
    if not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf is NaN
        bad = np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise OodmlError(
            f"{name} has NaN or infinite values in {len(bad)} of {len(rows)} rows (the first is row {bad[0]}). "
            "Extract the features of those images again, or leave the rows out."
        )
    return rows


def same_width(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape[1] != b.shape[1]:
        raise OodmlError(
            f"The two feature arrays have {a.shape[1]} and {b.shape[1]} dimensions: "
            "extract both with the same backbone, then compare them."
        )


@dataclass(frozen=True)
class ClassFeatures:
    """Rows of features by class. Classes are sorted by name, the rows of a class by their bytes.

    With the rows in canonical order, every sum adds the same numbers in the same order, so that a construction gives
    bit-equal splits for any order of the images.
    """

    features: np.ndarray  # (N, D) as given
    order: np.ndarray  # (N,) row numbers, class by class
    starts: np.ndarray  # (K + 1,) where the rows of a class begin in `order`
    names: list[str]

    @property
    def sizes(self) -> np.ndarray:
        """(K,) number of images of each class."""
        return np.diff(self.starts)

    def rows(self, classes: np.ndarray) -> np.ndarray:
        """Features of all images of these classes."""
        chosen = [self.order[self.starts[c] : self.starts[c + 1]] for c in classes]
        return self.features[np.concatenate(chosen)] if chosen else self.features[:0]

    def means(self) -> np.ndarray:
        """(K, D) class means in float64."""
        means = np.empty((len(self.names), self.features.shape[1]))
        first = 0
        while first < len(self.names):
            last = max(first + 1, int(np.searchsorted(self.starts, self.starts[first] + _ROWS, side="right")) - 1)
            rows = self.features[self.order[self.starts[first] : self.starts[last]]].astype(np.float64)
            means[first:last] = np.add.reduceat(rows, self.starts[first:last] - self.starts[first], axis=0)
            first = last
        return means / self.sizes[:, None]

    def positions(self, names: Sequence[str], what: str) -> np.ndarray:
        """Class numbers of these names."""
        position = {name: i for i, name in enumerate(self.names)}
        for name in names:
            if name not in position:
                raise unknown_name(f"class in {what}:", name, self.names)
        return np.array(sorted(position[name] for name in names), dtype=np.int64)


def group_by_class(features: Any, labels: Any, class_names: Sequence[str] | None = None) -> ClassFeatures:
    """Check features and labels and group them.

    `labels` are positions in `class_names`; without `class_names` any labels do, and their text is the name.
    Classes without images are left out.
    """
    rows = np.ascontiguousarray(feature_rows(features))
    ids, names = _class_ids(labels, class_names, len(rows))
    by_bytes = np.argsort(rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel(), kind="stable")
    order = by_bytes[np.argsort(ids[by_bytes], kind="stable")]
    starts = np.searchsorted(ids[order], np.arange(len(names) + 1))
    return ClassFeatures(rows, order, starts, names)


def _class_ids(labels: Any, class_names: Sequence[str] | None, count: int) -> tuple[np.ndarray, list[str]]:
    """Class number of every image, and the names of the classes that have images, sorted."""
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu().numpy()
    labels = np.asarray(labels)
    if labels.shape != (count,):
        raise OodmlError(f"{count} rows of features need {count} labels in a flat list; got shape {labels.shape}.")
    present, ids = np.unique(labels, return_inverse=True)
    if class_names is None:
        return ids.reshape(-1), [str(label) for label in present]
    if not np.issubdtype(present.dtype, np.integer) or present[0] < 0 or present[-1] >= len(class_names):
        raise OodmlError(
            f"labels must be positions in class_names (whole numbers from 0 to {len(class_names) - 1}); "
            f"found {present[0]!r} to {present[-1]!r}."
        )
    if len(set(class_names)) != len(class_names):
        raise OodmlError("class_names holds a name more than once: give every class a different name.")
    found = [str(class_names[label]) for label in present]
    by_name = np.array(sorted(range(len(found)), key=found.__getitem__))
    rank = np.empty(len(found), dtype=np.int64)
    rank[by_name] = np.arange(len(found))
    return rank[ids.reshape(-1)], [found[i] for i in by_name]
