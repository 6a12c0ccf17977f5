"""A mean with its uncertainty, for numbers that were measured several times: seeds, episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oodml._errors import OodmlError


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation and half width of the 95 % interval; the last two are NaN for a single value."""

    mean: float
    sd: float
    half_width: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if np.isnan(self.half_width) else f"{self.mean:.4f} ± {self.half_width:.4f}"


def share_interval(mean: float, half_width: float) -> tuple[float, float]:
    """The interval of a share (recall, AGS, …) for people to see: no further out than a share can be.

    Student's t knows no bounds, and over two seeds reaches far. A mean below 0, which AMI may have, stays inside,
    and NaN stays NaN.
    """
    return max(mean - half_width, min(0.0, mean)), min(mean + half_width, max(1.0, mean))


def share_text(mean: float, half_width: float, digits: int = 1) -> str:
    """A share in per cent with its 95 % interval: `85.0 ± 1.2`, or `97.2 [84.9–100.0]`, where ± would go beyond what a
    share can be; without one (a single value) the mean alone."""
    told = f"{100 * mean:.{digits}f}"
    if np.isnan(half_width):
        return told
    low, high = share_interval(mean, half_width)
    if (low, high) == (mean - half_width, mean + half_width):
        return f"{told} ± {100 * half_width:.{digits}f}"
    return f"{told} [{100 * low:.{digits}f}–{100 * high:.{digits}f}]"


def estimate(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Mean with Student's t-interval over independent repetitions (seeds, episodes)."""
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise OodmlError("An estimate needs at least one value.")
    if x.size == 1:
        return Estimate(float(x[0]), float("nan"), float("nan"), 1)
    sd = float(x.std(ddof=1))
    return Estimate(float(x.mean()), sd, float(stats.t.ppf((1 + level) / 2, x.size - 1) * sd / np.sqrt(x.size)), x.size)
