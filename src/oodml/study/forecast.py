"""The score to expect at another shift: interpolation between splits, checked by leaving each one out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from oodml._errors import OodmlError
from oodml.evaluation.estimate import share_interval
from oodml.study.table import UNTRAINED, StudyTable


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


def leave_one_out(fids: Sequence[float], scores: Sequence[float]) -> NDArray[np.float64]:
    """Prediction minus truth for every split but the two outermost, each predicted from all the others."""
    x, y = _sorted_curve(fids, scores)
    return _left_out_weights(x) @ y


def forecast(fids: Sequence[float], scores: Sequence[float], target: float, level: float = 0.95) -> Forecast:
    """The score to expect at the shift `target`, from the scores measured at `fids`.

    Plain linear interpolation between the two neighbouring splits, ŷ = w·y. The interval is judged by leaving out each
    inner split i in turn and predicting it: e = A·y. Where the curve is straight and every score carries noise of
    variance σ², Var e_i = σ² ‖A_i‖² and a new score differs from ŷ by σ² (1 + ‖w‖²). So σ̂² = mean e_i² / ‖A_i‖², and
    ŷ ± t·σ̂·√(1 + ‖w‖²). Neighbouring errors share scores; t has Satterthwaite's degrees of freedom, m² / Σ C_ij² with
    their correlations C. Where the curve bends, a left-out split spans twice the gap that the forecast does, and the
    interval is on the safe side. It ends at 0 and 1, which no score passes. Outside the measured range nothing is
    extrapolated: the interval is NaN and `inside` is False.
    """
    x, y = _sorted_curve(fids, scores)
    left_out = _left_out_weights(x)
    errors = left_out @ y
    error = float(np.abs(errors).mean())
    weights, inside = _interpolation(x, target), bool(x[0] <= target <= x[-1])
    score, half = float(weights @ y), float("nan")
    if inside:
        unit = left_out / np.linalg.norm(left_out, axis=1, keepdims=True)
        sigma = float(np.sqrt(np.mean((unit @ y) ** 2)))
        freedom = len(unit) ** 2 / np.square(unit @ unit.T).sum()
        half = float(stats.t.ppf((1 + level) / 2, freedom) * sigma * np.sqrt(1 + weights @ weights))
    low, high = share_interval(score, half)
    return Forecast(float(target), score, low, high, inside, (float(x[0]), float(x[-1])), error)


def _interpolation(x: NDArray[np.float64], target: float) -> NDArray[np.float64]:
    """Weights of the scores at `x` (rising) in the interpolated score at `target`."""
    return np.array([np.interp(target, x, row) for row in np.eye(len(x))])


def _left_out_weights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(inner splits, splits): the error of predicting an inner split from the others is a row of this times y."""
    rows = []
    for i in range(1, len(x) - 1):
        row = np.insert(_interpolation(np.delete(x, i), x[i]), i, 0.0)
        row[i] = -1.0
        rows.append(row)
    return np.array(rows)


def study_errors(table: StudyTable, metric: str, fids: Mapping[str, float] | None = None) -> dict[str, float]:
    """Mean absolute error of predicting each inner split from the others, for every ranked method and encoder but the
    untrained backbone: how exact a forecast from the study is. `fids` replaces the table's shifts, by split."""
    x = [fids[name] for name in table.splits] if fids is not None else table.measured_fids
    means = dict(zip(table.methods, table.means(metric), strict=True))
    ranked = [method for method in table.ags(metric) if table.kinds[method] != UNTRAINED]
    return {method: float(np.abs(leave_one_out(x, means[method])).mean()) for method in ranked}


def forecast_file(
    table: StudyTable,
    method: str,
    metric: str,
    gallery: tuple[int, int],
    fids: Mapping[str, float] | None = None,
    target: tuple[str, float] | None = None,
) -> dict[str, Any]:
    """The content of a study's `forecast.json`: the curve of a method, and the score to expect of a target (name, FID).

    `low` and `high` of the curve are the 95 % interval over seeds, None with one; those of the target are the
    forecast's, None outside the measured range.
    """
    shifts = dict(zip(table.splits, table.fids, strict=True)) if fids is None else fids
    cells = {split: table.cell(metric, method, split) for split in table.splits}
    measured = {split: cell for split, cell in cells.items() if cell is not None}
    curve = [
        {"split": split, "fid": shifts[split], "value": cell.mean, "low": _finite(low), "high": _finite(high)}
        for split, cell in measured.items()
        for low, high in [share_interval(cell.mean, cell.half_width)]
    ]
    x = [math.nan if (fid := shifts[split]) is None else fid for split in measured]
    y = [cell.mean for cell in measured.values()]
    held: dict[str, Any] = {
        "metric": metric,
        "method": method,
        "curve": curve,
        "target": None,
        "gallery": list(gallery),
    }
    enough = len(set(x)) >= 3 and bool(np.isfinite(x).all())
    held["leave_one_out_error"] = float(np.abs(leave_one_out(x, y)).mean()) if enough else None
    if target is not None and enough:
        found = forecast(x, y, target[1])
        held["target"] = {
            "name": target[0],
            "fid": found.fid,
            "value": found.score,
            "low": _finite(found.low),
            "high": _finite(found.high),
            "inside": found.inside,
        }
    return held


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


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
