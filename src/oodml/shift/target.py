"""Place new images on the scale of shifts of a training set, and find images that both sets contain.

The Fréchet distance of n samples is biased upwards, the more so the smaller n. Distances are therefore comparable
only between sets of one size: every split and the target are reduced to one common n, several times, without
replacement. (A bootstrap would repeat rows, which shrinks covariances and shifts the distance itself.)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from oodml._errors import OodmlError
from oodml._split import Splits
from oodml.shift._features import feature_rows, same_width
from oodml.shift.builder import build_splits
from oodml.shift.frechet import fid

KEEP = 0.7  # of the images, when classes are removed: a smaller gallery would hide the shift
DRAWS = 20
MOST_ROWS = 500  # per draw, whose cost grows with their cube; chosen, not a measured optimum
LEAST_COSINE, LEAST_LIKENESS = 0.9, 0.95  # from which two images are compared, and taken for one; not calibrated
THUMBNAIL = 24  # pixels


class ImageSource(Protocol):
    """The images of a dataset by position, as in `Dataset.source`."""

    def image(self, i: int, shrink_to: int | None = None) -> Image.Image: ...


class SharedImage(NamedTuple):
    """An image of both sets: its position in each, and the likeness of the two thumbnails."""

    train: int
    target: int
    likeness: float


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
    """Distances over images at `n` rows per side: of every split, and of the target from all training images.

    target         None: no target was given
    target_images  how many images the target has
    shared         images of the target that are in the training set too, if they were searched for …
    searched       … among this many training images
    """

    n: int
    splits: list[Spread]
    target: Spread | None = None
    target_images: int = 0
    shared: tuple[SharedImage, ...] = ()
    searched: int = 0

    @property
    def fids(self) -> dict[str, float]:
        """The mean distance of every split, by its name."""
        return {spread.name: spread.mean for spread in self.splits}

    @property
    def shared_targets(self) -> int:
        """How many images of the target are in the training set too."""
        return len({each.target for each in self.shared})


def reference_splits(
    features: Any, labels: Any, class_names: Sequence[str], n_splits: int, dataset: str = ""
) -> Splits:
    """Splits of the training images to compare a target with, from easier than the default half to hard.

    Built by class means: over images, every step would cost a decomposition as wide as the features.
    """
    with warnings.catch_warnings():  # the result shows that there are fewer
        warnings.filterwarnings("ignore", "Only .* splits")
        return build_splits(
            features, labels, class_names=class_names, n_splits=n_splits, reverse=True, keep=KEEP, dataset=dataset
        )


def place_target(
    train: Any,
    target: Any | None,
    splits: Sequence[tuple[str, np.ndarray, np.ndarray]],
    *,
    n: int | None = None,
    most_rows: int = MOST_ROWS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Placement:
    """Measure the target and every split at one common size.

    Args:
        train: (N, D) features of all training images; `splits` index its rows.
        target: (M, D) features of the target, without labels; None: only the splits are measured.
        splits: (name, rows of the training side, rows of the test side).
        n: rows per draw and side. None: half the smallest set, so that draws differ; at least 2, at most `most_rows`.
        draws: at least 20, so that the interval has a meaning.
    """
    train = feature_rows(train, "The training set", 2)
    every, other = np.arange(len(train)), train if target is None else feature_rows(target, "The target", 2)
    same_width(train, other)
    if draws < 20:
        raise OodmlError(f"An interval needs at least 20 draws, got {draws}.")
    smallest = min([len(train), len(other), *(len(side) for _, *sides in splits for side in sides)])
    n = max(2, min(smallest // 2, most_rows)) if n is None else n
    if not 2 <= n <= smallest:
        raise OodmlError(
            f"Every set is reduced to one size n, at least 2, at most that of the smallest set ({smallest}); got {n}. "
            "Add images, or leave small splits out."
        )

    def spread(name: str, number: int, a: np.ndarray, b: np.ndarray, rows_b: np.ndarray) -> Spread:
        values = []
        for draw in range(draws):
            rng = np.random.default_rng([seed, number, draw])
            pick_a, pick_b = (rng.choice(side, n, replace=False) for side in (a, b))
            values.append(fid(train[pick_a], rows_b[pick_b]))
        return Spread(name, np.array(values))

    measured = [spread(name, i, a, b, train) for i, (name, a, b) in enumerate(splits, 1)]
    if target is None:
        return Placement(n, measured)
    return Placement(n, measured, spread("target", 0, every, np.arange(len(other)), other), len(other))


def shared_images(
    train: ImageSource,
    train_features: Any,
    target: ImageSource,
    target_features: Any,
    *,
    least_cosine: float = LEAST_COSINE,
    least_likeness: float = LEAST_LIKENESS,
) -> tuple[SharedImage, ...]:
    """Images that both sets contain, also mirrored, resized or re-encoded; most alike first.

    Neighbours in feature space whose thumbnails agree too. A model tested on them is tested on its training images.
    """
    pairs = similar_pairs(train_features, target_features, least_cosine=least_cosine)
    if not pairs:
        return ()
    likeness = thumbnail_likeness(
        _thumbnails(train, [i for i, _, _ in pairs]), _thumbnails(target, [j for _, j, _ in pairs])
    )
    found = [SharedImage(i, j, float(score)) for (i, j, _), score in zip(pairs, likeness, strict=True)]
    return tuple(sorted((each for each in found if each.likeness >= least_likeness), key=lambda each: -each.likeness))


def similar_pairs(
    a: Any, b: Any, *, least_cosine: float = LEAST_COSINE, per_row: int = 5, block: int = 512
) -> list[tuple[int, int, float]]:
    """Pairs of rows of `a` and `b` that could show the same image: (row of a, row of b, cosine), nearest first.

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
    """Correlation of pairs of thumbnails (P, H, W, C), the larger of upright and mirrored: (P,) in [−1, 1].

    Near 1 for a re-encoded or resized copy.
    """

    def standardised(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1).astype(np.float64)
        flat -= flat.mean(axis=1, keepdims=True)
        return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)

    first = standardised(a)
    upright, mirrored = standardised(b), standardised(b[:, :, ::-1])
    return np.maximum((first * upright).sum(axis=1), (first * mirrored).sum(axis=1))


def _thumbnails(source: ImageSource, indices: Sequence[int]) -> np.ndarray:
    """(P, 24, 24, 3) small images, each decoded once."""
    small = {
        i: np.asarray(source.image(i, shrink_to=4 * THUMBNAIL).resize((THUMBNAIL, THUMBNAIL)).convert("RGB"))
        for i in sorted(set(indices))
    }
    return np.stack([small[i] for i in indices])
