"""The Aggregated Generalisation Score of ooDML (Milbich et al. 2021, section 4.1), and comparisons of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError
from oodml.evaluation.estimate import estimate


def ags_weights(fids: Sequence[float | None]) -> NDArray[np.float64]:
    """The weight of each split: AGS = Σ weight · score, in the order given; the weights sum to 1.

    x_i = (FID_i − min) / (max − min), sorted; the trapezoidal rule gives a split half the gap to either neighbour.
    """
    x = np.asarray(fids, dtype=np.float64)
    if not np.isfinite(x).all():
        raise OodmlError("AGS needs finite FIDs: measure the shift of every split first.")
    if np.unique(x).size < 2:
        raise OodmlError(
            f"AGS integrates over the shift and needs at least two different FIDs, got {np.unique(x).size}."
        )
    order = np.argsort(x, kind="stable")
    gaps = np.diff(x[order]) / (x.max() - x.min())
    weights = np.empty_like(x)
    weights[order] = (np.append(gaps, 0) + np.insert(gaps, 0, 0)) / 2
    return weights


def ags(fids: Sequence[float | None], scores: Sequence[float]) -> float:
    """Area under the curve of a score against the shift: one number over all splits.

    The FIDs are sorted and min-max normalised to x in [0, 1]; AGS is the trapezoidal integral of the score over x, so
    it stays in the range of the score. The scale of the FID does not matter, its spacing does.
    """
    y = np.asarray(scores, dtype=np.float64)
    if y.ndim != 1 or y.size != len(fids):
        raise OodmlError(f"AGS needs one score for each FID, got {len(fids)} FIDs and {y.size} scores.")
    if not np.isfinite(y).all():
        raise OodmlError("AGS needs finite scores: a split without a result cannot be summed up, run it first.")
    return float(ags_weights(fids) @ y)


@dataclass(frozen=True)
class Comparison:
    """AGS(first) − AGS(second), and its 95 % interval over seeds.

    `by_seed` are the differences of the single seeds; empty where neither method was trained, so that nothing varies.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    by_seed: tuple[float, ...] = ()

    @property
    def distinguishable(self) -> bool:
        return bool(self.low > 0 or self.high < 0)

    @property
    def unanimous(self) -> bool:
        """Whether the same method is ahead with every seed."""
        return len({np.sign(each) for each in self.by_seed} | {np.sign(self.difference)}) == 1


def compare(
    first: str,
    second: str,
    fids: Sequence[float | None],
    first_scores: NDArray[np.float64],
    second_scores: NDArray[np.float64],
) -> Comparison:
    """Paired t-interval of the AGS difference; scores are (splits, seeds), the same splits and seeds for both methods.

    It is over whole seeds: a seed sets the initial head and the order of the batches, and is often good or bad on every
    split. AGS is linear in the scores, so only the difference of every seed is needed. The splits are the benchmark,
    not a sample of one. A bootstrap over seeds has this limit, once its spread is corrected for few seeds
    (√(n / (n − 1)), and Student's t for the normal).
    """
    a, b = np.asarray(first_scores, dtype=np.float64), np.asarray(second_scores, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 2 or a.shape[0] != len(fids):
        raise OodmlError(
            f"Comparing {first!r} with {second!r} needs the same splits and seeds for both: got scores of shape "
            f"{a.shape} and {b.shape} for {len(fids)} splits."
        )
    by_seed = (ags_weights(fids) @ (a - b)).tolist()
    found = estimate(by_seed)
    low, high = found.mean - found.half_width, found.mean + found.half_width
    return Comparison(first, second, found.mean, low, high, tuple(by_seed))
