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
