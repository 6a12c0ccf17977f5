"""The study's numbers beside those of the papers, wherever both have measured the same."""

from __future__ import annotations

import math
from html import escape

from oodml.reporting.material import Material
from oodml.reporting.tables import estimate_text, html_table, switched
from oodml.study.published import SideBySide, compare_with_published, matching_tables, published_tables


def papers_tables(material: Material) -> str:
    """A table for every published one that shares a number with the study; empty when none does."""
    names = {result["dataset"]["name"] for result in material.results.values() if "dataset" in result}
    if len(names) != 1:
        return ""
    dataset = names.pop()
    keys = matching_tables(material.table, dataset)
    if not keys:
        return ""
    titles = [f"{published_tables()[key]['paper'].split(',')[0]}, {published_tables()[key]['table']}" for key in keys]
    bodies = [_table(key, compare_with_published(material.table, dataset, key)) for key in keys]
    return switched("published table", titles, bodies)


def _table(key: str, found: list[SideBySide]) -> str:
    about = published_tables()[key].get("about", "")
    columns = ["method", "split", "metric", "yours", "theirs", "yours − theirs", "95 % interval"]
    rows = [_row(each) for each in found]
    return f"<p>{escape(about)}</p>{html_table(columns, rows, f'beside-{key}')}"


def _row(found: SideBySide) -> list[str]:
    theirs = found.theirs
    spread = f" ± {100 * theirs.spread:.1f}" if theirs.spread else ""
    interval = "–" if math.isnan(found.low) else f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    return [
        theirs.method,
        theirs.split,
        theirs.metric,
        estimate_text(found.ours),
        f"{100 * theirs.value:.1f}{spread}",
        f"{100 * found.difference:+.1f}",
        interval,
    ]
