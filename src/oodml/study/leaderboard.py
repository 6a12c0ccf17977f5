"""The ranking of the methods and encoders of a study, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from oodml.evaluation import MATCHED
from oodml.evaluation.estimate import Estimate
from oodml.study.forecast import study_errors
from oodml.study.table import StudyTable

METRIC = MATCHED  # what studies rank by

FORMAT = 1


def leaderboard(table: StudyTable, metrics: Sequence[str] | None = None) -> dict[str, Any]:
    """Ranking by AGS for every metric, the one that studies rank by first, as plain data: fractions, None for unknown
    values.

    A method that lacks a split, or has no run yet, is in `not_ranked`. With a single shift there is no AGS: the mean
    over splits ranks instead, as `ranked_by` shows.
    """
    chosen = list(metrics or sorted(table.metrics, key=lambda metric: metric != METRIC))
    splits = [{"name": name, "fid": fid} for name, fid in zip(table.splits, table.fids, strict=True)]
    standings = {metric: _standing(table, metric) for metric in chosen}
    return {"format": FORMAT, "splits": splits, "metrics": standings, "notes": table.notes}


def _standing(table: StudyTable, metric: str) -> dict[str, Any]:
    several = table.shifts > 1
    ranked = ranking(table, metric)
    errors = study_errors(table, metric) if table.shifts > 2 else {}
    rows = []
    for rank, (method, score) in enumerate(ranked.items(), 1):
        cells = {split: table.cell(metric, method, split) for split in table.splits}
        row = {"rank": rank, "method": method, "kind": table.kinds[method], "score": _plain(score)}
        rows.append({**row, "splits": {split: _plain(cell) for split, cell in cells.items() if cell is not None}})
    compared = [table.compare(metric, a, b) for a, b in pairwise(ranked)] if several else []
    return {
        "ranked_by": "AGS" if several else "mean",
        "ranking": rows,
        "not_ranked": [method for method in _planned_methods(table, metric) if method not in ranked],
        "neighbours": [_finite(asdict(each)) for each in compared],
        "leave_one_out_error": sum(errors.values()) / len(errors) if errors else None,
    }


def _planned_methods(table: StudyTable, metric: str) -> list[str]:
    """The methods of the table that were scored by the metric, then those of the plan that have no run yet."""
    scored = dict.fromkeys(row.method for row in table.rows if metric in row.scores)
    return list(dict.fromkeys([*scored, *table.missing.values()]))


def ranking(table: StudyTable, metric: str) -> dict[str, Estimate]:
    """Best first: by AGS, or by the mean where all splits have one FID and there is nothing to integrate over."""
    return table.ags(metric) if table.shifts > 1 else table.mean_over_splits(metric)


def _plain(value: Estimate) -> dict[str, Any]:
    return _finite(asdict(value))


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
