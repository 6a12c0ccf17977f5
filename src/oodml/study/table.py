"""What a study found: scores by method, split and seed, and what is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError, unknown_name
from oodml.study.ags import ags
from oodml.study.statistics import Comparison, Estimate, compare, estimate


@dataclass(frozen=True)
class Row:
    """One finished run: where it stands in the grid, what it scored, what the untrained backbone scores there."""

    method: str
    split: str
    fid: float
    seed: int
    scores: Mapping[str, float]
    untrained: Mapping[str, float] = field(default_factory=dict)
    seconds: float = float("nan")
    path: Path | None = None


class StudyTable:
    """Rows of finished runs, read as arrays (method, split, seed); splits stand in order of rising FID."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        if not self.rows:
            raise OodmlError("The study has no finished run yet. Run it first.")
        self.methods = list(dict.fromkeys(row.method for row in self.rows))
        fids = {row.split: row.fid for row in self.rows}
        self.splits = sorted(fids, key=lambda name: (fids[name], name))
        self.fids = [fids[name] for name in self.splits]
        self.seeds = sorted({row.seed for row in self.rows})

    @cached_property
    def metrics(self) -> list[str]:
        """Metrics that every run carries, in the order of the first run."""
        return [m for m in self.rows[0].scores if all(m in row.scores for row in self.rows)]

    def scores(self, metric: str) -> NDArray[np.float64]:
        """(method, split, seed); NaN where a run is missing."""
        return self._grid(metric, lambda row: row.scores.get(metric, np.nan))

    def gain(self, metric: str) -> NDArray[np.float64]:
        """What training bought: score − score of the untrained backbone on the same split; (method, split, seed)."""
        return self._grid(metric, lambda row: row.scores.get(metric, np.nan) - row.untrained.get(metric, np.nan))

    def _grid(self, metric: str, value: Callable[[Row], float]) -> NDArray[np.float64]:
        if metric not in self.metrics:
            raise unknown_name("metric", metric, self.metrics)
        grid = np.full((len(self.methods), len(self.splits), len(self.seeds)), np.nan)
        for row in self.rows:
            place = self.methods.index(row.method), self.splits.index(row.split), self.seeds.index(row.seed)
            grid[place] = value(row)
        return grid

    def untrained(self, metric: str) -> NDArray[np.float64]:
        """Scores of the untrained backbone, one a split."""
        per_split = {row.split: row.untrained.get(metric, np.nan) for row in self.rows}
        return np.array([per_split[name] for name in self.splits])

    def difference_to_mean(self, metric: str) -> NDArray[np.float64]:
        """Mean score of a method minus the mean over methods, on each split (ooDML fig. 2, below); (method, split)."""
        means = np.nanmean(self.scores(metric), axis=2)
        return means - np.nanmean(means, axis=0)

    def cell(self, metric: str, method: str, split: str) -> Estimate | None:
        values = self.scores(metric)[self.methods.index(method), self.splits.index(split)]
        values = values[~np.isnan(values)]
        return estimate(values) if values.size else None

    def ags(self, metric: str) -> dict[str, Estimate]:
        """AGS of every method that has all its runs, best first; one that lacks a split or a seed is not ranked."""
        result = {}
        for method, grid in zip(self.methods, self.scores(metric), strict=True):
            if not np.isnan(grid).any():
                result[method] = estimate([ags(self.fids, grid[:, seed]) for seed in range(grid.shape[1])])
        return dict(sorted(result.items(), key=lambda item: -item[1].mean))

    def compare(self, metric: str, first: str, second: str) -> Comparison:
        grid = self.scores(metric)
        a, b = grid[self.methods.index(first)], grid[self.methods.index(second)]
        complete = ~(np.isnan(a) | np.isnan(b)).any(axis=0)
        if not complete.any():
            raise OodmlError(f"{first!r} and {second!r} have no seed in common that ran on every split.")
        return compare(first, second, self.fids, a[:, complete], b[:, complete])
