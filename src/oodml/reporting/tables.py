"""The tables of the page as HTML: scores with intervals, the papers' numbers, every run, and how it was made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import yaml

from oodml._errors import OodmlError
from oodml.evaluation.estimate import Estimate, share_text
from oodml.reporting.report_data import ReportData
from oodml.reporting.words import comparison_sentence
from oodml.study.leaderboard import ranking
from oodml.study.published import (
    PublishedComparison,
    comparable_tables,
    compare_with_published,
    matching_tables,
    published_tables,
    reading_notes,
)
from oodml.study.table import StudyTable

_NOT_SETTINGS = {"split", "out", "seed", "quiet", "method"}  # of the plan, or of no consequence


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], name: str) -> str:
    """A table that the page makes sortable, copyable and downloadable as NAME.csv."""
    head = "".join(f'<th scope="col">{_lines(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_lines(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="data" data-name="{escape(name)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def switched(switch: str, values: Sequence[str], bodies: Sequence[str]) -> str:
    """One of several bodies, chosen by the page's switch of that name; the first is there without any script."""
    parts = [f'<div data-place="{i}"{"" if i == 0 else " hidden"}>{body}</div>' for i, body in enumerate(bodies)]
    options = "\n".join(values)
    return (
        f'<div class="switched" data-switch="{escape(switch)}" data-values="{escape(options)}">{"".join(parts)}</div>'
    )


def score_tables(data: ReportData) -> str:
    """Methods down, AGS and splits across, with 95 % intervals; one table per metric."""
    return switched("metric", data.metrics, [score_table(data, metric) for metric in data.metrics])


def score_table(data: ReportData, metric: str) -> str:
    table = data.table
    ranked = ranking(table, metric)
    ags = ranked if table.shifts > 1 else {}
    rows = []
    for method in sorted(table.methods, key=lambda m: -ranked[m].mean if m in ranked else 0):
        cells = [estimate_text(table.cell(metric, method, split)) for split in table.splits]
        name = f"{method} (external)" if method in data.external else method
        rows.append([name, *([estimate_text(ags.get(method))] if ags else []), *cells])
    heads = [
        f"{split}\nFID {fid:.4g}" if fid is not None else split
        for split, fid in zip(table.splits, table.fids, strict=True)
    ]
    return html_table(["method", *(["AGS"] if ags else []), *heads], rows, f"scores-{metric}")


def estimate_text(found: Estimate | None) -> str:
    return "–" if found is None else share_text(found.mean, found.half_width)


def comparison_table(data: ReportData) -> str:
    """Every method against the best one: difference of AGS, its interval, and what it means in words."""
    ranked = list(data.table.ags(data.metric))
    rows = []
    for other in ranked[1:]:
        try:
            found = data.table.compare(data.metric, ranked[0], other)
        except OodmlError as error:
            rows.append([other, "–", "–", str(error)])
            continue
        interval = "–" if np.isnan(found.low) else f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
        rows.append([other, f"{-100 * found.difference:+.1f}", interval, comparison_sentence(found)])
    columns = ["method", "points of AGS to the best", "95 % interval of the lead", "in words"]
    return html_table(columns, rows, "comparison") if rows else ""


def runs_table(data: ReportData) -> str:
    """One line per run: its main numbers, and the name of its folder."""
    metrics = data.metrics[:2]
    rows = []
    for row in data.table.rows:
        scores = [_number(row.scores.get(metric, np.nan)) for metric in metrics]
        seconds = "–" if np.isnan(row.seconds) else f"{row.seconds:.0f}"
        rows.append([row.method, row.split, row.seed, *scores, seconds, row.path.name if row.path else "–"])
    return html_table(["method", "split", "seed", *metrics, "seconds", "run"], rows, "runs")


def made_table(data: ReportData) -> str:
    """Data, seeds, selection rule, hardware and versions, each with all values that occurred."""
    results = list(data.results.values())
    facts = {
        "dataset": _values(
            f"{r['dataset']['name']} ({r['dataset']['fingerprint']})" for r in results if "dataset" in r
        ),
        "splits": ", ".join(
            split if fid is None else f"{split} (FID {fid:.4g})"
            for split, fid in zip(data.table.splits, data.table.fids, strict=True)
        ),
        "methods": ", ".join(data.table.methods),
        "seeds": ", ".join(map(str, data.table.seeds)),
        "runs": _runs(data),
        "model selection": _values(_selection(r.get("selection")) for r in results),
        "hardware": _values(_hardware(r) for r in results),
        "versions": _values(", ".join(f"{k} {v}" for k, v in r.get("versions", {}).items()) for r in results),
        "commit": _values(r.get("git_commit") or "" for r in results),
        "notes of the runs": _values((note for r in results for note in r.get("notes", [])), " "),  # they are sentences
    }
    return html_table(["", ""], [(key, value) for key, value in facts.items() if value], "how-it-was-made")


def _runs(data: ReportData) -> str:
    counts = f"{len(data.results)} finished, {len(data.failures)} failed"
    waiting = data.table.missing.keys() - {failure.run for failure in data.failures}
    return f"{counts}, {len(waiting)} of {data.table.planned} not run yet" if waiting else counts


def _selection(rule: str | None) -> str:
    known = {
        "val": "best evaluation on held-out train classes (honest)",
        "test": "best evaluation on the test classes (the papers' rule)",
        "last": "the last evaluation",
    }
    return known.get(rule or "", rule or "")


def _hardware(result: dict[str, Any]) -> str:
    if "device" not in result:
        return ""
    return (
        f"{result['device']}, {result.get('processes', 1)} process(es), {result.get('threads', '?')} thread(s) per run"
    )


def _values(values: Iterable[str], between: str = "; ") -> str:
    return between.join(dict.fromkeys(value for value in values if value))


def settings_text(data: ReportData) -> str:
    """The study file where there is one, else the settings that all runs share, as YAML."""
    held = data.store.read("study.yaml") if data.store else None
    if held is not None:
        return held.decode("utf-8", "replace")
    configs = [result["config"] for result in data.results.values() if "config" in result]
    if not configs:
        return ""
    shared = {key: value for key, value in configs[0].items() if all(c.get(key) == value for c in configs)}
    return yaml.safe_dump({k: v for k, v in shared.items() if k not in _NOT_SETTINGS}, sort_keys=False)


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f}"


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")


def papers_tables(data: ReportData) -> str:
    """A table for every published one that shares a number with the study; empty when none does."""
    names = {result["dataset"]["name"] for result in data.results.values() if "dataset" in result}
    if len(names) != 1:
        return ""
    dataset = names.pop()
    tables = comparable_tables(data.table, data.store) if data.store else [data.table]
    pairs = [(table, key) for table in tables for key in matching_tables(table, dataset)]
    if not pairs:
        return ""
    titles = [
        f"{published_tables()[key]['paper'].split(',')[0]}, {published_tables()[key]['table']}" for _, key in pairs
    ]
    bodies = [_published_table(key, table, compare_with_published(table, dataset, key)) for table, key in pairs]
    return switched("published table", titles, bodies)


def _published_table(key: str, table: StudyTable, found: list[PublishedComparison]) -> str:
    about = published_tables()[key]
    columns = ["method", "split", "metric", "yours", "theirs", "yours − theirs", "95 % interval"]
    differs = any(each.differs for each in found)
    rows = [_published_row(each) + ([each.differs] if differs else []) for each in found]
    body = html_table(columns + (["not the same"] if differs else []), rows, f"published-{key}")
    notes = filter(None, [about.get("notes"), *reading_notes(table, found)])
    return f"<p>{escape(about.get('about', ''))}</p>{body}" + "".join(
        f'<p class="muted">{escape(note)}</p>' for note in notes
    )


def _published_row(found: PublishedComparison) -> list[str]:
    theirs = found.theirs
    spread = f" ± {100 * theirs.spread:.1f}" if theirs.spread else ""
    interval = "–" if math.isnan(found.low) else f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    return [
        found.row,
        found.place,
        theirs.metric,
        estimate_text(found.ours),
        f"{100 * theirs.value:.1f}{spread}",
        f"{100 * found.difference:+.1f}",
        interval,
    ]
