"""Where does a folder of new pictures fall on the scale of shifts of a training set, and do both share pictures?

The Fréchet distance of n samples is biased upwards, the more so the smaller n. Distances are therefore comparable
only between sets of one size: every split and the target are reduced to one common n, several times, without
replacement. (A bootstrap would repeat rows, which shrinks covariances and shifts the distance itself.)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.shift._arrays import feature_rows, same_width
from oodml.shift.builder import build_splits
from oodml.shift.frechet import fid
from oodml.shift.split import Splits

KEEP = 0.7  # of the pictures, when classes are removed: a smaller gallery would hide the shift
MOST_ROWS = 500  # a draw costs the cube of its rows; a choice, not a measured optimum


@dataclass(frozen=True)
class Spread:
    """Distances of repeated draws of one size."""

    name: str
    values: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The central range of the draws."""
        low, high = np.quantile(self.values, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


@dataclass(frozen=True)
class Placement:
    """The target's distance to the training set, beside those of the splits, all at `n` rows a side."""

    n: int
    target: Spread
    splits: list[Spread]

    def in_words(self) -> str:
        """Where the target falls, in a sentence."""
        ordered = sorted(self.splits, key=lambda spread: spread.mean)
        below = [spread for spread in ordered if spread.mean <= self.target.mean]
        low, high = self.target.interval()
        span = f"FID {self.target.mean:.1f} ({low:.1f} to {high:.1f} over {len(self.target.values)} draws of {self.n})"
        if not ordered:
            return f"The target is at {span}; there are no splits to compare it with."
        if not below:
            return f"The target is nearer than the easiest split, {ordered[0].name} ({ordered[0].mean:.1f}): {span}."
        if len(below) == len(ordered):
            return f"The target is farther than the hardest split, {below[-1].name} ({below[-1].mean:.1f}): {span}."
        above = ordered[len(below)]
        return (
            f"The target falls between {below[-1].name} ({below[-1].mean:.1f}) "
            f"and {above.name} ({above.mean:.1f}): {span}."
        )


def splits_of_pictures(
    features: Any, labels: Any, class_names: Sequence[str], n_splits: int, dataset: str = ""
) -> Splits:
    """The scale that a target is placed on: splits of one's own pictures, from easier than the usual half to hard.

    Steered by class means: by images, every step would cost a decomposition as wide as the features.
    """
    with warnings.catch_warnings():  # that there are fewer can be seen, and what would give more is chosen here
        warnings.filterwarnings("ignore", "Only .* splits")
        return build_splits(
            features, labels, class_names=class_names, n_splits=n_splits, reverse=True, keep=KEEP, dataset=dataset
        )


def place_target(
    train: Any,
    target: Any,
    splits: Sequence[tuple[str, np.ndarray, np.ndarray]],
    *,
    n: int | None = None,
    draws: int = 20,
    seed: int = 0,
) -> Placement:
    """Measure the target and every split at one common size.

    Args:
        train: (N, D) features of all training pictures; `splits` index its rows.
        target: (M, D) features of the target; no labels needed.
        splits: (name, rows of the training side, rows of the test side).
        n: rows a draw and side. None: half the smallest set, so that draws differ, two at least and 500 at most.
        draws: at least 20, so that the interval means something.
    """
    train, target = feature_rows(train, "The training set", 2), feature_rows(target, "The target", 2)
    same_width(train, target)
    if draws < 20:
        raise OodmlError(f"An interval needs at least 20 draws, got {draws}.")
    smallest = min([len(train), len(target), *(len(side) for _, *sides in splits for side in sides)])
    n = max(2, min(smallest // 2, MOST_ROWS)) if n is None else n
    if not 2 <= n <= smallest:
        raise OodmlError(
            f"Every set is reduced to one size n, at least 2, at most that of the smallest set ({smallest}); got {n}. "
            "Add pictures, or leave small splits out."
        )
    every = np.arange(len(train))

    def spread(name: str, number: int, a: np.ndarray, b: np.ndarray, rows_b: np.ndarray) -> Spread:
        values = []
        for draw in range(draws):
            rng = np.random.default_rng([seed, number, draw])
            pick_a, pick_b = (rng.choice(side, n, replace=False) for side in (a, b))
            values.append(fid(train[pick_a], rows_b[pick_b]))
        return Spread(name, np.array(values))

    placed = [spread(name, i, a, b, train) for i, (name, a, b) in enumerate(splits, 1)]
    return Placement(n, spread("target", 0, every, np.arange(len(target)), target), placed)


def similar_pairs(
    a: Any, b: Any, *, least_cosine: float = 0.9, per_row: int = 5, block: int = 512
) -> list[tuple[int, int, float]]:
    """Pairs of rows of `a` and `b` that could show the same picture: (row of a, row of b, cosine), nearest first.

    At most `per_row` candidates for a row of `b`.
    """
    a, b = feature_rows(a, "The first set"), feature_rows(b, "The second set")
    same_width(a, b)
    unit_a, unit_b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b))
    per_row = min(per_row, len(a))
    pairs: list[tuple[int, int, float]] = []
    for start in range(0, len(b), block):
        cosine = unit_b[start : start + block] @ unit_a.T
        nearest = np.argpartition(-cosine, per_row - 1, axis=1)[:, :per_row]
        near = np.take_along_axis(cosine, nearest, axis=1)
        row, column = np.nonzero(near >= least_cosine)
        pairs += zip(nearest[row, column], start + row, near[row, column], strict=True)
    return sorted(((int(i), int(j), float(c)) for i, j, c in pairs), key=lambda pair: (-pair[2], pair[0], pair[1]))


def thumbnail_likeness(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation of pairs of thumbnails, the better of upright and mirrored.

    Args:
        a, b: (P, H, W, C) small pictures, pair by pair.

    Returns:
        (P,) in [−1, 1]; near 1 for a re-encoded or resized copy. Where to draw the line is the caller's choice.
    """

    def standardised(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1).astype(np.float64)
        flat -= flat.mean(axis=1, keepdims=True)
        return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)

    first = standardised(a)
    upright, mirrored = standardised(b), standardised(b[:, :, ::-1])
    return np.maximum((first * upright).sum(axis=1), (first * mirrored).sum(axis=1))
