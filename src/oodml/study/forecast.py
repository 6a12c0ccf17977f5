"""What to expect at a shift that was not measured: interpolation between splits, checked by leaving each one out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from oodml._errors import OodmlError


@dataclass(frozen=True)
class Forecast:
    """An expected score with its 95 % interval; `inside` is False beyond the measured range of shifts."""

    fid: float
    score: float
    low: float
    high: float
    inside: bool
    measured: tuple[float, float]
    mean_absolute_error: float

    @property
    def sentence(self) -> str:
        low, high = self.measured
        if not self.inside:
            side = "beyond" if self.fid > high else "below"
            return (
                f"The shift of the target (FID {self.fid:.1f}) lies {side} the measured range {low:.1f} to {high:.1f}: "
                f"no forecast. At the nearest measured split the score is {100 * self.score:.1f}."
            )
        return (
            f"At FID {self.fid:.1f} expect {100 * self.score:.1f} (95 % interval {100 * self.low:.1f} to "
            f"{100 * self.high:.1f}); left-out splits were predicted to {100 * self.mean_absolute_error:.1f} points."
        )


def leave_one_out(fids: Sequence[float], scores: Sequence[float]) -> NDArray[np.float64]:
    """Prediction minus truth for every split but the two outermost, each predicted from all the others."""
    x, y = _sorted_curve(fids, scores)
    inner = range(1, len(x) - 1)
    return np.array([np.interp(x[i], np.delete(x, i), np.delete(y, i)) - y[i] for i in inner])


def forecast(fids: Sequence[float], scores: Sequence[float], target: float, level: float = 0.95) -> Forecast:
    """The score to expect at the shift `target`, from the scores measured at `fids`.

    Plain linear interpolation. The interval is Student's t on the root mean square of the leave-one-out errors: an
    error there has the noise of one new split plus that of its two neighbours, as the forecast has, and twice the
    gap, so the interval is on the safe side where the curve bends. Outside the measured range nothing is
    extrapolated: the interval is NaN and `inside` is False.
    """
    x, y = _sorted_curve(fids, scores)
    errors = leave_one_out(fids, scores)
    error = float(np.abs(errors).mean())
    score, inside = float(np.interp(target, x, y)), bool(x[0] <= target <= x[-1])
    half = float(stats.t.ppf((1 + level) / 2, len(errors)) * np.sqrt(np.mean(errors**2))) if inside else float("nan")
    return Forecast(float(target), score, score - half, score + half, inside, (float(x[0]), float(x[-1])), error)


def _sorted_curve(fids: Sequence[float], scores: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(fids, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise OodmlError(f"A forecast needs one score for each FID, got {x.size} FIDs and {y.size} scores.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise OodmlError("A forecast needs finite FIDs and scores: run the missing splits first.")
    if np.unique(x).size < 3:
        raise OodmlError(
            f"A forecast needs at least three splits of different FID to judge itself, got {np.unique(x).size}."
        )
    order = np.argsort(x, kind="stable")
    return x[order], y[order]
