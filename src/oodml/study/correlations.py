"""Whether splits rank methods alike, and whether the shape of an embedding space correlates with generalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from oodml._errors import OodmlError, unknown_name
from oodml.study.table import StudyTable, mean_over_seeds

Array = NDArray[np.float64]
SCALES = ("unit", "standard")


def rank_correlation(table: StudyTable, metric: str) -> Array:
    """Spearman's ρ of the methods' mean scores for every pair of splits, (split, split): 1 where the order is the same.

    Only trained methods with a score on both splits count; NaN with fewer than three of them or where all tie.
    """
    means = _of(table, None, table.means(metric))
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
    """score ≈ intercept + slope · measure, both scaled per split; `n` points, one for each method and split."""

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
    """The correlation of a measure of the embedding space with a score: over all splits, and on the default split."""

    structure: str
    metric: str
    overall: Trend
    default_only: Trend
    default: str


def structure_correlation(
    table: StudyTable,
    structure: str,
    metric: str = "recall@1",
    side: str = "train",
    default: str | None = None,
    methods: Sequence[str] | None = None,
    scale: str = "unit",
) -> StructureCorrelation:
    """Correlate a measure of the space on the `side` classes with a score on the test classes.

    Args:
        default: the split of the ordinary benchmark. None: the one with the classes of the dataset's default split,
            else the one of least shift.
        methods: some of the trained methods; `table.discriminative` are those that are only a loss.
        scale: level and spread of both differ between splits for reasons other than the methods, so both are scaled on
            every split over the methods before all points are pooled: "unit" to [0, 1] (ooDML, figure 4), "standard"
            to zero mean and unit standard deviation.
    """
    chosen = default or table.split_named("default") or table.splits[0]
    if chosen not in table.splits:
        raise unknown_name("split", chosen, table.splits)
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    x = _of(table, methods, mean_over_seeds(table.structure(structure, side)))
    y = _of(table, methods, table.means(metric))
    missing = np.isnan(x) | np.isnan(y)
    x, y = (scaled(np.where(missing, np.nan, each), scale) for each in (x, y))
    at = table.splits.index(chosen)
    return StructureCorrelation(structure, metric, trend(x, y), trend(x[:, at], y[:, at]), chosen)


def structure_correlations(
    table: StudyTable, metric: str = "recall@1", side: str = "train", **options: Any
) -> list[StructureCorrelation]:
    """Every measure of the space that the runs have, the strongest correlation first; options as above."""
    names = dict.fromkeys(name for row in table.rows for name in row.structure.get(side, ()))
    found = [structure_correlation(table, name, metric, side, **options) for name in names]
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


def scaled(grid: Array, scale: str = "unit") -> Array:
    """Each column (a split) scaled over its rows (methods), as `structure_correlation` says; NaN where none varies."""
    result = np.full_like(grid, np.nan)
    for column in range(grid.shape[1]):
        kept = ~np.isnan(grid[:, column])
        values = grid[kept, column]
        if len(values) >= 2 and np.ptp(values) > 0:
            offset, size = (values.min(), np.ptp(values)) if scale == "unit" else (values.mean(), values.std(ddof=1))
            result[kept, column] = (values - offset) / size
    return result


def _of(table: StudyTable, methods: Sequence[str] | None, grid: Array) -> Array:
    for name in methods or ():
        if name not in table.trained:
            raise unknown_name("trained method", name, table.trained)
    return grid[[table.methods.index(name) for name in (table.trained if methods is None else methods)]]
