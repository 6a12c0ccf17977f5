"""The ranking of the methods and encoders of a study, as one file for people and one for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from oodml.evaluation import MATCHED
from oodml.evaluation.estimate import Estimate, share_text
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
        "neighbours": [{**_finite(asdict(each)), "sentence": each.sentence} for each in compared],
        "leave_one_out_error": sum(errors.values()) / len(errors) if errors else None,
    }


def _planned_methods(table: StudyTable, metric: str) -> list[str]:
    """The methods of the table that were scored by the metric, then those of the plan that have no run yet."""
    scored = dict.fromkeys(row.method for row in table.rows if metric in row.scores)
    return list(dict.fromkeys([*scored, *table.missing.values()]))


def ranking(table: StudyTable, metric: str) -> dict[str, Estimate]:
    """Best first: by AGS, or by the mean where all splits have one FID and there is nothing to integrate over."""
    return table.ags(metric) if table.shifts > 1 else table.mean_over_splits(metric)


def as_markdown(board: dict[str, Any], title: str = "Leaderboard") -> str:
    """The same for people: one table per metric, per cent, and a sentence on each pair of neighbours."""
    names = [
        each["name"] if each["fid"] is None else f"{each['name']} (FID {each['fid']:.1f})" for each in board["splits"]
    ]
    parts = [f"# {title}"]
    for metric, standing in board["metrics"].items():
        heads = ["#", "method", "kind", standing["ranked_by"], *names]
        lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for row in standing["ranking"]:
            cells = [percent(row["splits"].get(each["name"])) for each in board["splits"]]
            texts = [str(row["rank"]), row["method"], row["kind"], percent(row["score"]), *cells]
            lines.append(f"| {' | '.join(each.replace('|', '/') for each in texts)} |")
        parts += [f"## {metric}, per cent", "\n".join(lines)]
        parts += ["\n".join(f"- {each}" for each in found)] if (found := standing_sentences(standing)) else []
    return "\n\n".join([*parts, *board.get("notes", [])]) + "\n"


def standing_sentences(standing: dict[str, Any]) -> list[str]:
    """What the table of a metric does not show: the methods that are not ranked, the comparisons of neighbours, and how
    exact a forecast is."""
    sentences = [each["sentence"] for each in standing["neighbours"]]
    if standing["not_ranked"]:
        sentences.append(f"Not ranked, since a split is missing: {', '.join(standing['not_ranked'])}.")
    if standing["leave_one_out_error"] is not None:
        error = f"{100 * standing['leave_one_out_error']:.1f}"
        sentences.append(f"A left-out split is predicted from the others to {error} points (mean over methods).")
    return sentences


def _plain(value: Estimate) -> dict[str, Any]:
    return _finite(asdict(value))


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def percent(value: dict[str, Any] | None) -> str:
    """A score of the board with its interval."""
    if value is None:
        return "–"
    return share_text(value["mean"], math.nan if value["half_width"] is None else value["half_width"])
