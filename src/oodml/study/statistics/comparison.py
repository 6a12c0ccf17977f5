"""Paired comparison of two methods over the splits and seeds of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError
from oodml.evaluation.estimate import estimate
from oodml.study.statistics.ags import ags_weights


@dataclass(frozen=True)
class Comparison:
    """AGS(first) − AGS(second), its 95 % interval over seeds, and the sentence that says what it means.

    `by_seed` are the differences of the single seeds; none where neither method was trained, so that nothing varies.
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
        """Whether all seeds say the same of who is ahead."""
        return len({np.sign(each) for each in self.by_seed} | {np.sign(self.difference)}) == 1

    @property
    def interval(self) -> str:
        """The interval of the lead, whoever has it, in words; two seeds tell little, and that is said."""
        low, high = (self.low, self.high) if self.difference >= 0 else (-self.high, -self.low)
        more = ", and more would narrow it" if len(self.by_seed) == 2 else ""
        return f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} over {len(self.by_seed)} seeds{more}"

    @property
    def sentence(self) -> str:
        points = f"{100 * abs(self.difference):.1f} points of AGS"
        if points.startswith("0.0 ") and not self.distinguishable:
            return f"{self.first} and {self.second} are level: less than 0.1 points of AGS between them."
        ahead, behind = (self.first, self.second) if self.difference >= 0 else (self.second, self.first)
        if not self.by_seed:
            return f"{ahead} is {points} ahead of {behind}; neither was trained here, so there are no seeds to compare."
        if np.isnan(self.low):
            return f"{ahead} is {points} ahead of {behind}, but one seed cannot say whether that is more than noise."
        if self.distinguishable:
            return f"{ahead} is {points} ahead of {behind} ({self.interval})."
        return f"{self.first} and {self.second} cannot be told apart: {points} between them ({self.interval})."


def compare(
    first: str,
    second: str,
    fids: Sequence[float],
    first_scores: NDArray[np.float64],
    second_scores: NDArray[np.float64],
) -> Comparison:
    """Paired t-interval of the AGS difference; scores are (splits, seeds), the same splits and seeds for both methods.

    It is over whole seeds: a seed sets the initial head and the order of the batches, and one that is good or bad on
    every split is no rare thing. AGS is linear in the scores, so the difference of every seed is all that is needed.
    The splits themselves are the benchmark, not a sample of one. It is what a bootstrap over seeds comes to with ever
    more draws, once its spread is corrected for few seeds (√(n / (n − 1)), and Student's t for the normal).
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
