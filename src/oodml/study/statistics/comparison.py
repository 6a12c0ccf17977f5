"""Paired comparison of two methods over the splits and seeds of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError
from oodml.study.statistics.ags import ags_weights


@dataclass(frozen=True)
class Comparison:
    """AGS(first) − AGS(second), its bootstrap interval, and the sentence that says what it means."""

    first: str
    second: str
    difference: float
    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        return bool(self.low > 0 or self.high < 0)

    @property
    def sentence(self) -> str:
        points = f"{100 * abs(self.difference):.1f} points of AGS"
        ahead, behind = (self.first, self.second) if self.difference >= 0 else (self.second, self.first)
        if np.isnan(self.low):
            return f"{ahead} is {points} ahead of {behind}, but one seed cannot say whether that is more than noise."
        interval = f"95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"
        if self.distinguishable:
            return f"{ahead} is {points} ahead of {behind} ({interval})."
        return f"{self.first} and {self.second} cannot be told apart: {points} between them ({interval})."


def compare(
    first: str,
    second: str,
    fids: Sequence[float],
    first_scores: NDArray[np.float64],
    second_scores: NDArray[np.float64],
    draws: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Paired bootstrap of the AGS difference; scores are (splits, seeds), the same splits and seeds for both methods.

    AGS is linear in the scores, so AGS(first) − AGS(second) is a weighted sum over splits of the paired differences.
    The runs of different splits are independent, so seeds are drawn anew for each split. The splits themselves are
    the benchmark, not a sample of one, and are not resampled. The spread of a resampled mean is short by
    √(n / (n − 1)) at n seeds, which matters at five; the deviations are widened by it.
    """
    a, b = np.asarray(first_scores, dtype=np.float64), np.asarray(second_scores, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 2 or a.shape[0] != len(fids):
        raise OodmlError(
            f"Comparing {first!r} with {second!r} needs the same splits and seeds for both: got scores of shape "
            f"{a.shape} and {b.shape} for {len(fids)} splits."
        )
    paired = a - b
    weights = ags_weights(fids)
    difference = float(weights @ paired.mean(axis=1))
    splits, seeds = paired.shape
    if seeds == 1:
        return Comparison(first, second, difference, float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    chosen = rng.integers(seeds, size=(draws, splits, seeds))
    resampled = paired[np.arange(splits)[None, :, None], chosen].mean(axis=2)
    spread = (resampled - paired.mean(axis=1)) * np.sqrt(seeds / (seeds - 1))
    low, high = difference + np.quantile(spread @ weights, [0.025, 0.975])
    return Comparison(first, second, difference, float(low), float(high))
