"""A `Chart` for a paper: the first view as PNG and SVG, drawn by matplotlib on white."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.ticker import LogLocator, NullFormatter

from oodml._files import atomic_file
from oodml.reporting.chart import GREY, INK, Chart, Series, Style, View
from oodml.reporting.thumbnails import pixels_of

_MARKERS = {
    "circle": "o",
    "circle-open": "",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
    "star": "*",
}
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "oodml",
    "axes.titlesize": 10,
}


def write_figures(charts: list[Chart], folder: Path) -> list[Path]:
    """Every chart as NAME.png (300 dpi) and NAME.svg (text stays text) in `folder`."""
    written = []
    for chart in charts:
        with rc_context(_LOOK):
            written += save_figure(draw(chart.first, _height(chart)), folder / chart.id)
    return written


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """A drawing as PATH.png and PATH.svg."""
    written = []
    for suffix, options in (("png", {"dpi": 300}), ("svg", {"metadata": {"Date": None}})):
        written.append(path.with_name(f"{path.name}.{suffix}"))
        with rc_context(_LOOK), atomic_file(written[-1]) as temporary:
            figure.savefig(temporary, format=suffix, **options)
    return written


def draw(view: View, height: float = 3.2) -> Figure:
    """One view as a drawing 6 inches wide, the legend above the axes."""
    figure = Figure(figsize=(6.0, height), layout="constrained")
    axes = figure.subplots()
    for series in view.series:
        _draw_series(axes, series)
    axes.set_xlabel(view.x_label)
    axes.set_ylabel(view.y_label)
    if view.log_y:
        _log_axis(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    if view.bare:
        axes.set_axis_off()
    if any(series.listed and series.kind != "bars" for series in view.series):
        longest = max(len(series.name) for series in view.series)
        figure.legend(loc="outside upper left", ncols=3 if longest < 25 else 2, frameon=False, fontsize=8)
    return figure


def _log_axis(axes: Axes) -> None:
    """Decades are labelled, over few of them 2 and 5 too: labels at every digit are too dense to read."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_series(axes: Axes, series: Series) -> None:
    style = Style.of(series.style)
    label = _name(series.name) if series.listed else "_nolegend_"
    if series.kind == "bars":
        names = [_name(str(name)) for name in series.y]
        axes.barh(names, series.x, color=style.colour, height=0.65, xerr=_error(series, series.x), ecolor=INK)
        for name, value in zip(names, series.x, strict=True):
            axes.annotate(f" {value:.1f}", (value, name), va="center", ha="left", fontsize=8)
        return
    marker = _MARKERS[style.marker]
    if series.kind == "points":
        size, alpha = (2.5, 0.4) if series.faint else (5, 1)
        look: dict[str, Any] = {
            "color": style.colour,
            "marker": marker or "o",
            "markersize": size,
            "alpha": alpha,
            "linestyle": "none",
        }
        axes.errorbar(series.x, series.y, _error(series, series.y), label=label, **look)
        for x, y, url in zip(series.x, series.y, series.images or (), strict=False):
            box = AnnotationBbox(OffsetImage(pixels_of(url), zoom=0.28), (float(x), float(y)), frameon=False)
            box.set_in_layout(False)  # the layout keeps space for the marks, not for every image at the edge
            axes.add_artist(box)
        return
    many = len(series.x) > 20
    line: dict[str, Any] = {
        "linestyle": _DASHES[style.dash],
        "linewidth": 1.4,
        "marker": "" if many else marker,
        "markersize": 4,
    }
    axes.plot(series.x, series.y, color=style.colour, label=label, **line)
    if series.low is not None and series.high is not None:
        axes.fill_between(series.x, series.low, series.high, color=style.colour, alpha=0.15, linewidth=0)


def _error(series: Series, centre: object) -> np.ndarray | None:
    if series.low is None or series.high is None:
        return None
    middle = np.asarray(centre, dtype=np.float64)
    return np.stack([middle - np.asarray(series.low), np.asarray(series.high) - middle]).clip(min=0)


def _height(chart: Chart) -> float:
    bars = sum(series.kind == "bars" for series in chart.first.series)
    return 0.7 + 0.3 * bars if bars else 5.5 if any(series.images for series in chart.first.series) else 3.2


def _name(text: str) -> str:
    """A dollar sign would begin a formula."""
    return text.replace("$", r"\$")
