"""The exact distance between the two sides of a partition, updated by the classes that changed side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from oodml._machine import one_thread_if
from oodml.shift._features import ClassFeatures
from oodml.shift.frechet import SVD_LIMIT, Gaussian, frechet, triangle

Rows = Callable[[np.ndarray], np.ndarray]  # class numbers -> their rows


class Partition:
    """Distances between sets of classes, over class means or over images.

    centres  (K, D) class means, the points of Eq. 2 and 3 (rotated where that makes them narrower)
    weights  (K,) weight of a class in the mean of its side: 1, or its number of images
    """

    def __init__(self, classes: ClassFeatures, mode: str) -> None:
        means = classes.means()
        middle = means.mean(axis=0)
        means -= middle
        self.sizes = classes.sizes
        if mode == "class-means":
            self.weights = np.ones(len(means))
            # Fewer classes than dimensions: R of Mᵀ = QR holds the same points in their own subspace, same distances.
            with one_thread_if(len(means) <= SVD_LIMIT):
                self.centres = means if len(means) >= means.shape[1] else triangle(means.T).T.copy()
            rows: Rows = self.centres.__getitem__
        else:
            self.weights = self.sizes.astype(np.float64)
            self.centres = means
            rows = partial(_shifted_rows, classes, middle)
        self._squared_norms = np.einsum("ij,ij->i", self.centres, self.centres)
        counts = np.rint(self.weights).astype(np.int64)
        self._train = _Side(rows, counts, self.centres.shape[1])
        self._test = _Side(rows, counts, self.centres.shape[1])

    @property
    def narrow(self) -> bool:
        """Whether all matrices are too small to be worth more than one thread."""
        return self.centres.shape[1] <= SVD_LIMIT

    def mean(self, chosen: np.ndarray) -> np.ndarray:
        """Mean of the side that holds these classes."""
        weights = np.zeros(len(self.centres))  # a product over all classes is faster than copying half of them
        weights[chosen] = self.weights[chosen]
        return weights @ self.centres / weights.sum()

    def distances(self, chosen: np.ndarray, side: np.ndarray) -> np.ndarray:
        """‖μ_C − μ_side‖ of every chosen class C, expanded into products."""
        mean = self.mean(side)
        squared = self._squared_norms + mean @ mean - 2 * (self.centres @ mean)
        return np.sqrt(np.maximum(squared[chosen], 0.0))

    def approximate(self, train: np.ndarray, test: np.ndarray) -> float:
        """‖μ_train − μ_test‖²: the part of the distance that swapping steers by."""
        apart = self.mean(train) - self.mean(test)
        return float(apart @ apart)

    def exact(self, train: np.ndarray, test: np.ndarray) -> float:
        """The Fréchet distance between the two sides."""
        return frechet(self._train.gaussian(train), self._test.gaussian(test))


def _shifted_rows(classes: ClassFeatures, middle: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return classes.rows(chosen) - middle


class _Side:
    """Mean and covariance of a changing set of classes.

    Sums and second moments are kept; a class that joins or leaves adds or subtracts the outer products of its own
    rows (a low-rank update). Storing a second-moment matrix for every class would take 380 GB at the size of SOP.
    """

    def __init__(self, rows: Rows, counts: np.ndarray, dims: int) -> None:
        self._rows, self._counts, self._dims = rows, counts, dims
        self._held = np.zeros(len(counts), dtype=bool)
        self._sum = np.zeros(dims)
        self._moment: np.ndarray | None = None

    def gaussian(self, chosen: np.ndarray) -> Gaussian:
        total = int(self._counts[chosen].sum())
        if total <= self._dims:  # the rows themselves are the smaller description
            return Gaussian.of_rows(self._rows(chosen))
        self._become(chosen, total)
        assert self._moment is not None
        mean = self._sum / total
        covariance = (self._moment - total * np.outer(mean, mean)) / (total - 1)
        return Gaussian(mean, covariance=covariance)

    def _become(self, chosen: np.ndarray, total: int) -> None:
        wanted = np.zeros_like(self._held)
        wanted[chosen] = True
        changed = self._held != wanted
        if self._moment is None or self._counts[changed].sum() >= total:
            self._held = np.zeros_like(self._held)
            self._sum = np.zeros(self._dims)
            self._moment = np.zeros((self._dims, self._dims))
        self._update(np.flatnonzero(wanted & ~self._held), +1)
        self._update(np.flatnonzero(self._held & ~wanted), -1)
        self._held = wanted

    def _update(self, classes: np.ndarray, sign: int, block: int = 8192) -> None:
        ends = np.cumsum(self._counts[classes])
        first = 0
        while first < len(classes):
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + block, side="right")))
            rows = self._rows(classes[first:last])
            self._sum += sign * rows.sum(axis=0)
            if sign > 0:
                self._moment += rows.T @ rows
            else:
                self._moment -= rows.T @ rows
            first = last
