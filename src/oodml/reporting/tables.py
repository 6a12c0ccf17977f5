"""The tables of the page as HTML: scores with their uncertainty, every run, and how it was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import yaml

from oodml._errors import OodmlError
from oodml.evaluation.estimate import Estimate, share_text
from oodml.reporting.material import Material
from oodml.study.leaderboard import ranking

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


def score_tables(material: Material) -> str:
    """Methods down, AGS and splits across, with 95 % intervals; one table a metric."""
    return switched("metric", material.metrics, [score_table(material, metric) for metric in material.metrics])


def score_table(material: Material, metric: str) -> str:
    table = material.table
    ranked = ranking(table, metric)
    ags = ranked if table.shifts > 1 else {}
    rows = []
    for method in sorted(table.methods, key=lambda m: -ranked[m].mean if m in ranked else 0):
        cells = [estimate_text(table.cell(metric, method, split)) for split in table.splits]
        name = f"{method} (external)" if method in material.external else method
        rows.append([name, *([estimate_text(ags.get(method))] if ags else []), *cells])
    heads = [
        f"{split}\nFID {fid:.4g}" if fid is not None else split
        for split, fid in zip(table.splits, table.fids, strict=True)
    ]
    return html_table(["method", *(["AGS"] if ags else []), *heads], rows, f"scores-{metric}")


def estimate_text(found: Estimate | None) -> str:
    return "–" if found is None else share_text(found.mean, found.half_width)


def comparison_table(material: Material) -> str:
    """Every method against the best one: difference of AGS, its interval, and what it means in words."""
    ranked = list(material.table.ags(material.metric))
    rows = []
    for other in ranked[1:]:
        try:
            found = material.table.compare(material.metric, ranked[0], other)
        except OodmlError as error:
            rows.append([other, "–", "–", str(error)])
            continue
        interval = "–" if np.isnan(found.low) else f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
        rows.append([other, f"{-100 * found.difference:+.1f}", interval, found.sentence])
    columns = ["method", "points of AGS to the best", "95 % interval of the lead", "in words"]
    return html_table(columns, rows, "comparison") if rows else ""


def runs_table(material: Material) -> str:
    """One line a run: the few numbers people look for, and the folder's name to find the rest."""
    metrics = material.metrics[:2]
    rows = []
    for row in material.table.rows:
        scores = [_number(row.scores.get(metric, np.nan)) for metric in metrics]
        seconds = "–" if np.isnan(row.seconds) else f"{row.seconds:.0f}"
        rows.append([row.method, row.split, row.seed, *scores, seconds, row.path.name if row.path else "–"])
    return html_table(["method", "split", "seed", *metrics, "seconds", "run"], rows, "runs")


def made_table(material: Material) -> str:
    """Data, seeds, selection rule, hardware and versions, each with all values that occurred."""
    results = list(material.results.values())
    facts = {
        "data set": _values(
            f"{r['dataset']['name']} ({r['dataset']['fingerprint']})" for r in results if "dataset" in r
        ),
        "splits": ", ".join(
            split if fid is None else f"{split} (FID {fid:.4g})"
            for split, fid in zip(material.table.splits, material.table.fids, strict=True)
        ),
        "methods": ", ".join(material.table.methods),
        "seeds": ", ".join(map(str, material.table.seeds)),
        "runs": _runs(material),
        "model selection": _values(_selection(r.get("selection")) for r in results),
        "hardware": _values(_hardware(r) for r in results),
        "versions": _values(", ".join(f"{k} {v}" for k, v in r.get("versions", {}).items()) for r in results),
        "commit": _values(r.get("git_commit") or "" for r in results),
        "notes of the runs": _values((note for r in results for note in r.get("notes", [])), " "),  # they are sentences
    }
    return html_table(["", ""], [(key, value) for key, value in facts.items() if value], "how-it-was-made")


def _runs(material: Material) -> str:
    told = f"{len(material.results)} finished, {len(material.failures)} failed"
    waiting = material.table.missing.keys() - {failure.run for failure in material.failures}
    return f"{told}, {len(waiting)} of {material.table.planned} not run yet" if waiting else told


def _selection(rule: str | None) -> str:
    known = {
        "val": "best evaluation on held-out train classes (honest)",
        "test": "best evaluation on the test classes (the papers' habit)",
        "last": "the last evaluation",
    }
    return known.get(rule or "", rule or "")


def _hardware(result: dict[str, Any]) -> str:
    if "device" not in result:
        return ""
    return f"{result['device']}, {result.get('processes', 1)} process(es), {result.get('threads', '?')} thread(s) a run"


def _values(values: Iterable[str], between: str = "; ") -> str:
    return between.join(dict.fromkeys(value for value in values if value))


def settings_text(material: Material) -> str:
    """The study file where there is one, else the settings that all runs share, as YAML."""
    held = material.store.read("study.yaml") if material.store else None
    if held is not None:
        return held.decode("utf-8", "replace")
    configs = [result["config"] for result in material.results.values() if "config" in result]
    if not configs:
        return ""
    shared = {key: value for key, value in configs[0].items() if all(c.get(key) == value for c in configs)}
    return yaml.safe_dump({k: v for k, v in shared.items() if k not in _NOT_SETTINGS}, sort_keys=False)


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f}"


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")
