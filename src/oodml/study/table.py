"""What a study found: scores by method, split and seed, and what is derived from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation.estimate import Estimate, estimate
from oodml.study.statistics import Comparison, ags, compare

TRAINED, UNTRAINED, EXTERNAL = "trained", "untrained", "external"


@dataclass(frozen=True)
class Row:
    """One finished run, or an encoder that was not trained here, on one split.

    fid        the shift of the split; None where it was not measured
    untrained  the scores of the untrained backbone on the same split
    kind       "trained"; "untrained": the backbone before training; "external": another encoder that was only scored
    structure  measures of the embedding space by side: {"train": {"rho": ...}, "test": {...}}
    about      how the run was made, where that is known: `backbone`, `embedding_dim`, `protocol`, `selection`, `maxima`
               (whether every metric has its own best evaluation), `epochs_between` evaluations, `discriminative`
               (whether it trains on a loss alone)
    """

    method: str
    split: str
    fid: float | None
    seed: int
    scores: Mapping[str, float]
    untrained: Mapping[str, float] = field(default_factory=dict)
    seconds: float = float("nan")
    path: Path | None = None
    kind: str = TRAINED
    structure: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


class StudyTable:
    """Rows of finished runs, read as arrays (method, split, seed); splits are in order of rising FID.

    Seeds are those of the trained methods; an encoder that was not trained has none, and is at the first. `missing` are
    the runs of the study's plan without a result: ID to method. `known_as` are further names of a split, from its
    classes, such as "default" or "official-3"; without it a split has only its own name.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        missing: Mapping[str, str] | None = None,
        known_as: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.rows = list(rows)
        self.missing = dict(missing or {})
        self.known_as = dict(known_as or {})
        if not self.rows:
            raise OodmlError("The study has no finished run yet. Run it first.")
        self.methods = list(dict.fromkeys(row.method for row in self.rows))
        self.kinds = {row.method: row.kind for row in self.rows}
        fids = {row.split: row.fid for row in self.rows}
        self.splits = sorted(fids, key=lambda name: (math.inf if (fid := fids[name]) is None else fid, name))
        self.fids = [fids[name] for name in self.splits]
        self.seeds = sorted({row.seed for row in self.rows if row.kind == TRAINED} or {0})

    @cached_property
    def trained(self) -> list[str]:
        """Methods that were trained here, in the order of the table."""
        return [method for method in self.methods if self.kinds[method] == TRAINED]

    @cached_property
    def discriminative(self) -> list[str]:
        """The trained methods that are only a loss: no further task, distillation, regularisation or mixing."""
        found = {row.method for row in self.rows if row.about.get("discriminative")}
        return [method for method in self.trained if method in found]

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the scores."""
        notes = []
        tested = [row for row in self.rows if row.about.get("selection") == "test"]
        older = [row for row in tested if not row.about["maxima"]]
        if older:
            notes.append(
                f"Scores at the best recall@1: {len(older)} of {len(tested)} runs are older than the rule that every "
                "metric has its own maximum over the evaluations."
            )
        stale = Counter(row.about["stale"] for row in self.rows if row.about.get("stale"))
        notes += [f"{count} runs of an earlier version are stale: {why}." for why, count in stale.items()]
        gaps = sorted({round(gap, 1) for row in tested if (gap := row.about["epochs_between"]) > 1})
        if gaps:
            every = f"{gaps[0]:g}" if len(gaps) == 1 else f"{gaps[0]:g} to {gaps[-1]:g}"
            notes.append(
                f"Not evaluated every epoch, but every {every} epochs: the best of fewer evaluations is lower than "
                "the papers' best of all epochs."
            )
        return notes

    @property
    def planned(self) -> int:
        """How many runs the study's plan has, finished or not."""
        return sum(row.kind == TRAINED for row in self.rows) + len(self.missing)

    @property
    def unfinished(self) -> str:
        """A sentence on what of the plan is missing; empty where nothing is."""
        if not self.missing:
            return ""
        be, methods = "is" if len(self.missing) == 1 else "are", ", ".join(dict.fromkeys(self.missing.values()))
        return f"Unfinished: {len(self.missing)} of {self.planned} runs {be} missing ({methods})."

    @cached_property
    def metrics(self) -> list[str]:
        """Metrics of every trained run, in the order of the first; other encoders may lack some of them.

        The standard error of a metric (`:se`) is not one.
        """
        rows = [row for row in self.rows if row.kind == TRAINED] or self.rows
        return [m for m in rows[0].scores if not m.endswith(":se") and all(m in row.scores for row in rows)]

    def split_named(self, name: str) -> str | None:
        """The split with the classes of that name, or of that name where its classes are unknown."""
        return next((split for split in self.splits if name in self.known_as.get(split, (split,))), None)

    @property
    def shifts(self) -> int:
        """Levels of shift among the splits, 0 where one was not measured. Fewer than two cannot show how methods
        generalise under a growing shift."""
        return 0 if None in self.fids else len(set(self.fids))

    @property
    def measured_fids(self) -> list[float]:
        """The FIDs of the splits in their order; NaN for a split whose shift was not measured."""
        return [math.nan if fid is None else fid for fid in self.fids]

    def scores(self, metric: str) -> NDArray[np.float64]:
        """(method, split, seed); NaN where a run is missing."""
        return self._grid(metric, lambda row: row.scores.get(metric, np.nan))

    def gain(self, metric: str) -> NDArray[np.float64]:
        """Score − score of the untrained backbone on the same split; (method, split, seed)."""
        return self._grid(metric, lambda row: row.scores.get(metric, np.nan) - row.untrained.get(metric, np.nan))

    def structure(self, metric: str, side: str = "train") -> NDArray[np.float64]:
        """A measure of the embedding space, such as `rho`, on the classes of one side; (method, split, seed)."""
        known = {name for row in self.rows for name in row.structure.get(side, ())}
        if metric not in known:
            raise unknown_name(f"structure metric of the {side} classes:", metric, known)
        return self._filled(lambda row: row.structure.get(side, {}).get(metric, np.nan))

    def _grid(self, metric: str, value: Callable[[Row], float]) -> NDArray[np.float64]:
        if metric not in self.metrics:
            raise unknown_name("metric", metric, self.metrics)
        return self._filled(value)

    def _filled(self, value: Callable[[Row], float]) -> NDArray[np.float64]:
        grid = np.full((len(self.methods), len(self.splits), len(self.seeds)), np.nan)
        for row in self.rows:
            seed = self.seeds.index(row.seed) if row.kind == TRAINED else 0
            grid[self.methods.index(row.method), self.splits.index(row.split), seed] = value(row)
        return grid

    def means(self, metric: str) -> NDArray[np.float64]:
        """Mean over seeds, (method, split); NaN where a method has no run."""
        return mean_over_seeds(self.scores(metric))

    def difference_to_mean(self, metric: str, of_gain: bool = False) -> NDArray[np.float64]:
        """Mean score (or gain) minus the mean over the trained methods, on each split (fig. 2); (method, split)."""
        means = mean_over_seeds(self.gain(metric) if of_gain else self.scores(metric))
        of_trained = means[[self.methods.index(name) for name in self.trained or self.methods]]
        return means - mean_over_seeds(of_trained.T)

    def cell(self, metric: str, method: str, split: str) -> Estimate | None:
        """Mean, sd and 95 % interval over seeds; None without a run."""
        values = self.scores(metric)[self.methods.index(method), self.splits.index(split)]
        values = values[~np.isnan(values)]
        return estimate(values) if values.size else None

    def ags(self, metric: str) -> dict[str, Estimate]:
        """AGS of every method, best first; one that lacks a split for any of its seeds is not ranked."""
        return self._ranked(metric, lambda scores: ags(self.fids, scores))

    def mean_over_splits(self, metric: str) -> dict[str, Estimate]:
        """The same by the plain mean, for splits of one shift: there is nothing to integrate over."""
        return self._ranked(metric, lambda scores: float(np.mean(scores)))

    def _ranked(self, metric: str, aggregate: Callable[[Sequence[float]], float]) -> dict[str, Estimate]:
        result = {}
        for method, grid in zip(self.methods, self.scores(metric), strict=True):
            own = grid[:, ~np.isnan(grid).all(axis=0)]
            if own.size and not np.isnan(own).any():
                result[method] = estimate([aggregate(own[:, seed]) for seed in range(own.shape[1])])
        return dict(sorted(result.items(), key=lambda item: -item[1].mean))

    def compare(self, metric: str, first: str, second: str) -> Comparison:
        """AGS(first) − AGS(second) over the seeds that both have on every split.

        Between two encoders that were not trained nothing varies, so their difference has no interval.
        """
        a, b = self.side_by_side(metric, first, second)
        if not a.shape[1]:
            raise OodmlError(f"{first!r} and {second!r} have no seed in common that ran on every split.")
        found = compare(first, second, self.fids, a, b)
        return found if TRAINED in (self.kinds[first], self.kinds[second]) else replace(found, by_seed=())

    def side_by_side(self, metric: str, first: str, second: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(split, seed) of both, of the seeds that both have on every split.

        An encoder that was not trained has no seed: its one value on a split is compared with every seed of a trained
        method.
        """
        grid = self.scores(metric)
        a, b = (self._of(grid, name) for name in (first, second))
        if (self.kinds[first] == TRAINED) != (self.kinds[second] == TRAINED):
            a, b = (_repeated(x) if self.kinds[n] != TRAINED else x for x, n in ((a, first), (b, second)))
        complete = ~(np.isnan(a) | np.isnan(b)).any(axis=0)
        return a[:, complete], b[:, complete]

    def comparisons(self, metric: str) -> list[Comparison]:
        """Every pair of ranked methods, the better one first, in the order of the ranking."""
        return [self.compare(metric, first, second) for first, second in combinations(self.ags(metric), 2)]

    def _of(self, grid: NDArray[np.float64], method: str) -> NDArray[np.float64]:
        if method not in self.methods:
            raise unknown_name("method", method, self.methods)
        return grid[self.methods.index(method)]


def mean_over_seeds(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last axis without NaN; NaN where nothing is left."""
    there = ~np.isnan(grid)
    count = there.sum(axis=-1)
    total = np.where(there, grid, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _repeated(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """(split, seed) with the one value of every split under every seed."""
    return np.broadcast_to(mean_over_seeds(grid)[:, None], grid.shape)


def with_untrained(rows: Sequence[Row]) -> list[Row]:
    """The rows, and a row for every split and backbone with the mean of its untrained scores over the runs.

    Networks from scratch differ by their seed, so the untrained score of one run does not represent all.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.untrained:
            groups.setdefault((untrained_label(row.about.get("backbone")), row.split), []).append(row)
    added = [
        Row(label, split, found[0].fid, 0, _mean_scores(found), kind=UNTRAINED, about=_same(found, "backbone"))
        for (label, split), found in groups.items()
    ]
    return [*rows, *added]


def untrained_label(backbone: str | None) -> str:
    return f"untrained {backbone}" if backbone else "untrained"


def _mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    names = [name for name in rows[0].untrained if all(name in row.untrained for row in rows)]
    return {name: float(mean_over_seeds(np.array([row.untrained[name] for row in rows]))) for name in names}


def _same(rows: Sequence[Row], name: str) -> dict[str, Any]:
    return {name: rows[0].about[name]} if name in rows[0].about else {}
