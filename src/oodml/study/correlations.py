"""Do splits rank methods alike, and does the shape of an embedding space go with how well it generalises?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from oodml._errors import OodmlError, unknown_name
from oodml.study.statistics import StudyTable, mean_over_seeds

Array = NDArray[np.float64]


def rank_correlation(table: StudyTable, metric: str) -> Array:
    """Spearman's ρ of the methods' mean scores for every pair of splits, (split, split): 1 where both rank alike.

    Only trained methods with a score on both splits count; NaN with fewer than three of them or where all tie.
    """
    means = _trained(table, table.means(metric))
    count = len(table.splits)
    result = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(i, count):
            both = ~np.isnan(means[:, [i, j]]).any(axis=1)
            a, b = means[both, i], means[both, j]
            if len(a) >= 3 and np.ptp(a) > 0 and np.ptp(b) > 0:
                result[i, j] = result[j, i] = 1.0 if i == j else stats.spearmanr(a, b).statistic
    return result


@dataclass(frozen=True)
class Trend:
    """score ≈ intercept + slope · measure, both standardised per split; `n` points, one a method and split."""

    pearson: float
    spearman: float
    slope: float
    intercept: float
    p_value: float  # of a slope as far from zero by chance, points taken as independent
    n: int
    measure: Array
    score: Array


@dataclass(frozen=True)
class StructureCorrelation:
    """How a measure of the embedding space goes with a score: over all splits, and on the default split alone."""

    structure: str
    metric: str
    overall: Trend
    default_only: Trend
    default: str


def structure_correlation(
    table: StudyTable, structure: str, metric: str = "recall@1", side: str = "train", default: str | None = None
) -> StructureCorrelation:
    """Correlate a measure of the space on the `side` classes with a score on the test classes.

    Splits differ in level and spread of both, which says nothing about methods: on every split both are reduced to
    zero mean and unit standard deviation over methods before all points are pooled. `default` is the split that stands
    for the ordinary benchmark: the one of that name, else the one of least shift.
    """
    chosen = default or ("default" if "default" in table.splits else table.splits[0])
    if chosen not in table.splits:
        raise unknown_name("split", chosen, table.splits)
    x = _trained(table, mean_over_seeds(table.structure(structure, side)))
    y = _trained(table, table.means(metric))
    missing = np.isnan(x) | np.isnan(y)
    x, y = (_standardised(np.where(missing, np.nan, each)) for each in (x, y))
    at = table.splits.index(chosen)
    return StructureCorrelation(structure, metric, trend(x, y), trend(x[:, at], y[:, at]), chosen)


def structure_correlations(
    table: StudyTable, metric: str = "recall@1", side: str = "train"
) -> list[StructureCorrelation]:
    """Every measure of the space that the runs carry and that varies, the most telling first."""
    names = dict.fromkeys(name for row in table.rows for name in row.structure.get(side, ()))
    found = [structure_correlation(table, name, metric, side) for name in names]
    return sorted(found, key=lambda each: -abs(np.nan_to_num(each.overall.pearson)))


def trend(measure: Array, score: Array) -> Trend:
    """Correlations and the least-squares line of `score` on `measure`; pairs with a NaN are left out.

    NaN where fewer than three points remain or one side does not vary.
    """
    x, y = np.ravel(measure), np.ravel(score)
    if x.shape != y.shape:
        raise OodmlError(f"A trend needs as many measures as scores, got {x.size} and {y.size}.")
    kept = ~(np.isnan(x) | np.isnan(y))
    x, y = x[kept], y[kept]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        nan = float("nan")
        return Trend(nan, nan, nan, nan, nan, len(x), x, y)
    line = stats.linregress(x, y)
    rank = float(stats.spearmanr(x, y).statistic)
    return Trend(line.rvalue, rank, line.slope, line.intercept, line.pvalue, len(x), x, y)


def _trained(table: StudyTable, grid: Array) -> Array:
    return grid[[table.methods.index(name) for name in table.trained]]


def _standardised(grid: Array) -> Array:
    """Zero mean and unit standard deviation down each column (over methods); NaN where a column does not vary."""
    result = np.full_like(grid, np.nan)
    for column in range(grid.shape[1]):
        kept = ~np.isnan(grid[:, column])
        values = grid[kept, column]
        if len(values) >= 2 and np.ptp(values) > 0:
            result[kept, column] = (values - values.mean()) / values.std(ddof=1)
    return result
