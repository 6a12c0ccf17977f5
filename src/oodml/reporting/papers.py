"""The study's numbers next to those of the papers, wherever both have measured the same."""

from __future__ import annotations

import math
from html import escape

from oodml.reporting.material import Material
from oodml.reporting.tables import estimate_text, html_table, switched
from oodml.study.published import (
    PublishedComparison,
    comparable_tables,
    compare_with_published,
    matching_tables,
    published_tables,
    reading_notes,
)
from oodml.study.table import StudyTable


def papers_tables(material: Material) -> str:
    """A table for every published one that shares a number with the study; empty when none does."""
    names = {result["dataset"]["name"] for result in material.results.values() if "dataset" in result}
    if len(names) != 1:
        return ""
    dataset = names.pop()
    tables = comparable_tables(material.table, material.store) if material.store else [material.table]
    pairs = [(table, key) for table in tables for key in matching_tables(table, dataset)]
    if not pairs:
        return ""
    titles = [
        f"{published_tables()[key]['paper'].split(',')[0]}, {published_tables()[key]['table']}" for _, key in pairs
    ]
    bodies = [_table(key, table, compare_with_published(table, dataset, key)) for table, key in pairs]
    return switched("published table", titles, bodies)


def _table(key: str, table: StudyTable, found: list[PublishedComparison]) -> str:
    about = published_tables()[key]
    columns = ["method", "split", "metric", "yours", "theirs", "yours − theirs", "95 % interval"]
    differs = any(each.differs for each in found)
    rows = [_row(each) + ([each.differs] if differs else []) for each in found]
    body = html_table(columns + (["not the same"] if differs else []), rows, f"beside-{key}")
    notes = filter(None, [about.get("notes"), *reading_notes(table, found)])
    return f"<p>{escape(about.get('about', ''))}</p>{body}" + "".join(
        f'<p class="muted">{escape(note)}</p>' for note in notes
    )


def _row(found: PublishedComparison) -> list[str]:
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
