"""One self-contained HTML page: sections, the charts' data and the chart library inside; nothing is loaded."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from oodml.reporting.chart import Chart
from oodml.reporting.draw_plotly import chart_data, plotly_script


@dataclass(frozen=True)
class Section:
    """A heading with charts and further HTML below them; `lead` is a sentence of plain text."""

    id: str
    title: str
    lead: str = ""
    charts: list[Chart] = field(default_factory=list)
    body: str = ""


def page_html(title: str, words: list[str], subtitle: str, sections: list[Section], galleries: Any) -> str:
    """The whole page. Everything that carries names of the user's reaches the browser as text, never as markup."""
    charts = [chart_data(chart) for section in sections for chart in section.charts]
    payload = {"charts": charts, "galleries": galleries}
    assets = files("oodml.reporting") / "assets"
    contents = "".join(f'<a href="#{escape(s.id)}">{escape(s.title)}</a>' for s in sections)
    first, *rest = words
    return (
        (assets / "page.html")
        .read_text(encoding="utf-8")
        .format(
            title=escape(title),
            subtitle=escape(subtitle),
            answer=escape(first),
            details="".join(f"<p>{escape(sentence)}</p>" for sentence in rest),
            contents=contents,
            sections="".join(map(_section_html, sections)),
            style=(assets / "page.css").read_text(encoding="utf-8"),
            script=(assets / "page.js").read_text(encoding="utf-8"),
            data=packed(json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()),
            plotly=packed(plotly_script()),
        )
    )


def _section_html(section: Section) -> str:
    lead = f"<p>{escape(section.lead)}</p>" if section.lead else ""
    charts = "".join(_chart_html(chart, titled=len(section.charts) > 1) for chart in section.charts)
    grid = f'<div class="charts">{charts}</div>' if charts else ""
    return f'<section id="{escape(section.id)}"><h2>{escape(section.title)}</h2>{lead}{grid}{section.body}</section>'


def _chart_html(chart: Chart, titled: bool) -> str:
    title = f"<h3>{escape(chart.title)}</h3>" if titled else ""  # a chart alone has the heading of its section
    caption = f'<figcaption>{escape(chart.caption)} <span class="note"></span></figcaption>'
    switches = "" if chart.follows else '<div class="switches"></div>'
    return (
        f'<figure class="chart {chart.width}" data-chart="{escape(chart.id)}" aria-label="{escape(chart.title)}">'
        f'{title}{switches}<div class="plot" style="height:{chart.height}px"></div>{caption}</figure>'
    )


def packed(content: bytes) -> str:
    """gzip and base64, which every present browser unpacks by itself."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")
