"""`report`: write the page of a study, and the figures for a paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from pathlib import Path

from oodml._files import atomic_file
from oodml.reporting.chart import Chart
from oodml.reporting.draw_matplotlib import write_figures
from oodml.reporting.gallery import galleries
from oodml.reporting.page import Section, page_html
from oodml.reporting.report_data import ReportData, read_report_data
from oodml.reporting.run_charts import (
    capacity_chart,
    discriminative_chart,
    few_shot_chart,
    spectra_chart,
    structure_chart,
    training_chart,
)
from oodml.reporting.shift_charts import (
    difference_chart,
    forecast_chart,
    generic_chart,
    progression_chart,
    ranking_chart,
    score_chart,
)
from oodml.reporting.split_figures import map_charts
from oodml.reporting.tables import comparison_table, made_table, papers_tables, runs_table, score_tables, settings_text
from oodml.reporting.words import answer
from oodml.study import load_study
from oodml.study.store import open_store
from oodml.study.table import StudyTable

INTERVALS = "; ± is half the 95 % interval over seeds, [a–b] one that would go beyond 0 or 100"


def report(
    study: StudyTable | str | Path,
    out: str | Path = "report.html",
    figures: str | Path | None = None,
    metric: str | None = None,
    title: str | None = None,
) -> Path:
    """Write the page of a study, and with `figures` every chart as PNG and SVG into that folder.

    Args:
        study: what `run_study` or `load_study` gave, or the folder or URL of a study.
        out: the page, one file that needs nothing else.
        figures: a folder for the printed figures; each shows the first view of its chart, that of `metric`.
        metric: what the answer and the first views are about; default: recall@1 at one gallery size, else recall@1.
        title: default: the dataset's name.

    Sections without data are left out. Returns the path of the page.
    """
    store = None if isinstance(study, StudyTable) else open_store(study)
    table = study if isinstance(study, StudyTable) else load_study(study)
    data = read_report_data(table, store, metric, title)
    sections, found = build_sections(data)
    html = page_html(data.title, answer(data), _subtitle(data), sections, found)
    page = Path(out)
    with atomic_file(page) as temporary:
        temporary.write_text(html, encoding="utf-8")
    if figures is not None:
        write_figures([chart for section in sections for chart in section.charts], Path(figures))
    return page


def build_sections(data: ReportData) -> tuple[list[Section], object]:
    """Every section that has something to show, and the galleries' data."""
    images, notes = galleries(data)
    maps, more_notes = map_charts(data)
    rising, seeds = data.table.shifts > 1, len(data.table.seeds)
    sections = [
        _charts("shift", "Performance under shift", [score_chart, difference_chart], data)
        if rising
        else _charts("methods", "Methods compared", [ranking_chart], data),
        Section("scores", "Scores", f"Per cent{INTERVALS if seeds > 1 else ''}.", body=score_tables(data)),
        _charts("ags", "Aggregated generalisation score", [ranking_chart], data, comparison_table) if rising else None,
        _papers(data),
        _charts("forecast", "Forecast", [forecast_chart], data),
        _charts("generic", "Generic representations", [generic_chart], data) if rising else None,
        _charts("few-shot", "Few-shot adaptation", [few_shot_chart], data),
        _charts("capacity", "Network capacity", [capacity_chart], data),
        _charts(
            "structure", "Structure of the embeddings", [structure_chart, discriminative_chart, spectra_chart], data
        ),
        _gallery(images),
        _charts("training", "Training curves", [training_chart], data),
        _splits(data, maps),
        _made(data, [*data.table.notes, *notes, *more_notes]),
    ]
    return [section for section in sections if section is not None], images


def _charts(
    name: str,
    title: str,
    makers: list[Callable[[ReportData], Chart | None]],
    data: ReportData,
    table: Callable[[ReportData], str] | None = None,
) -> Section | None:
    charts = [chart for maker in makers if (chart := maker(data)) is not None]
    return Section(name, title, charts=charts, body=table(data) if table else "") if charts else None


def _papers(data: ReportData) -> Section | None:
    body = papers_tables(data)
    lead = "Numbers that the papers print for the same dataset, split, method and metric; ± is their deviation."
    return Section("papers", "Next to the papers", lead, body=body) if body else None


def _splits(data: ReportData, maps: list[Chart]) -> Section | None:
    charts = [chart for chart in [progression_chart(data), *maps] if chart is not None]
    return Section("splits", "The splits", charts=charts) if charts else None


def _gallery(images: object) -> Section | None:
    if images is None:
        return None
    lead = (
        "Queries whose first neighbour is of another class, worst first: those with the most wrong images before the "
        "first right one, one query per class, of the first seed. Point at an image for its file, class and distance."
    )
    return Section("galleries", "What it finds", lead, body='<div id="gallery"></div>')


def _made(data: ReportData, notes: list[str]) -> Section:
    body = made_table(data)
    if data.failures:
        items = "".join(
            f"<li><details><summary><code>{escape(f.run)}</code> {escape(f.reason)}</summary>"
            f"<pre>{escape(f.traceback)}</pre></details></li>"
            for f in data.failures
        )
        body += f"<h3>What failed</h3><ul>{items}</ul>"
    body += "".join(f'<p class="muted">{escape(note)}</p>' for note in notes)
    if settings := settings_text(data):
        body += f"<details><summary>Settings</summary><pre>{escape(settings)}</pre></details>"
    body += f"<details><summary>Every run</summary>{runs_table(data)}</details>"
    return Section("made", "How it was made", body=body)


def _subtitle(data: ReportData) -> str:
    table = data.table
    runs = sum(row.method in data.trained for row in table.rows)
    sizes = {"methods": len(data.trained), "splits": len(table.splits), "seeds": len(table.seeds)}
    count = [f"{size} {name[:-1] if size == 1 else name}" for name, size in sizes.items()]
    if runs < math.prod(sizes.values()):  # not every method has every seed
        count[-1] = f"up to {count[-1]}"
    others = f", {len(data.external)} scored without training" if data.external else ""
    of = f" of {table.planned}" if table.missing else ""
    return f"{' × '.join(count)}, {runs}{of} runs{others}"
