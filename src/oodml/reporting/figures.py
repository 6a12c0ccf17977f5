"""Figures of a study as matplotlib drawings, ready to be inlined into a page."""

from __future__ import annotations

import io
import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oodml.study.table import StudyTable

# Okabe and Ito's colours, distinguishable without colour vision; the markers distinguish them in print too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
GREY = "#808891"  # readable on a light and on a dark page


def score_against_shift(table: StudyTable, metric: str) -> Figure:
    """One line a method with its spread over seeds; dotted: the untrained backbone."""
    figure, axes = _empty_figure()
    for i, (method, grid) in enumerate(zip(table.methods, 100 * table.scores(metric), strict=True)):
        mean = np.nanmean(grid, axis=1)
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        axes.plot(table.fids, mean, label=method, linewidth=1.8, markersize=5, color=colour, marker=marker)
        if grid.shape[1] > 1:
            spread = np.nanstd(grid, axis=1, ddof=1)
            axes.fill_between(table.fids, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    untrained = 100 * table.untrained(metric)
    if not np.isnan(untrained).any():
        axes.plot(table.fids, untrained, ":", color=GREY, linewidth=1.5, label="untrained")
    axes.set_xlabel("shift between train and test classes (FID)", color=GREY)
    axes.set_ylabel(f"{metric} in per cent", color=GREY)
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9)
    return figure


def ags_bars(table: StudyTable, metric: str) -> Figure:
    """AGS of every ranked method, best first, with its interval over seeds where there are several."""
    ranking = table.ags(metric)
    figure, axes = _empty_figure(height=0.45 * len(ranking) + 0.9)
    names, means = list(ranking)[::-1], [100 * e.mean for e in ranking.values()][::-1]
    errors = [0 if np.isnan(e.half_width) else 100 * e.half_width for e in ranking.values()][::-1]
    colours = [COLOURS[table.methods.index(name) % len(COLOURS)] for name in names]
    axes.barh(names, means, xerr=errors if any(errors) else None, color=colours, ecolor=GREY, height=0.6)
    for y, mean in enumerate(means):
        axes.text(mean, y, f" {mean:.1f}", va="center", color=GREY, fontsize=10)
    axes.set_xlim(max(0, min(means) - 15), max(means) + 5)
    axes.set_xlabel(f"AGS ({metric}) in per cent", color=GREY)
    return figure


def _empty_figure(height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.tick_params(colors=GREY)
    axes.grid(color=GREY, alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    return figure, axes


def inline_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element that scales with the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'class="figure"', svg, count=1)
