"""A `Chart` for the page: traces for plotly.js, whose script comes from the installed `plotly` package.

Only the script is used, never the Python side: the page holds it compressed (1.5 of 4.8 MB) and needs no network.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.reporting.chart import Chart, Series, Style, View


def plotly_script() -> bytes:
    """plotly.min.js of the installed package."""
    found = importlib.util.find_spec("plotly")
    script = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if script is None or not script.exists():
        raise OodmlError("The report draws its charts with plotly, which is not installed: pip install plotly.")
    return script.read_bytes()


def chart_data(chart: Chart) -> dict[str, Any]:
    """All views of a chart as plain JSON; the page adds the colours of the theme."""
    return {
        "id": chart.id,
        "height": chart.height,
        "switches": {name: list(values) for name, values in chart.switches.items()},
        "views": {"|".join(_places(chart, key)): _view(view) for key, view in chart.views.items()},
    }


def _places(chart: Chart, key: tuple[str, ...]) -> list[str]:
    """A view is found by the positions of its values, so that no value can be mistaken for a separator."""
    return [str(list(values).index(value)) for values, value in zip(chart.switches.values(), key, strict=True)]


def _view(view: View) -> dict[str, Any]:
    bars = any(series.kind == "bars" for series in view.series)
    return {
        "traces": [trace for series in view.series for trace in _traces(series)],
        "x": text(view.x_label),
        "y": text(view.y_label),
        "log": view.log_y,
        "bare": view.bare,
        "bars": bars,
        "note": view.note,
    }


def text(value: str) -> str:
    """plotly reads a few HTML tags in any text it draws; names are shown as they are."""
    return escape(value, quote=False).replace("\n", "<br>")


def _traces(series: Series) -> list[dict[str, Any]]:
    style = Style.of(series.style)
    short = series.name if len(series.name) <= 32 else f"{series.name[:30]}…"  # the hover has the whole name
    common = {"name": text(short), "legendgroup": series.name, "showlegend": series.listed}
    marks = {
        **common,
        "x": _plain(series.x),
        "y": _plain(series.y),
        "hoverinfo": "text" if series.hover is not None else "x+y+name",
    }
    if series.hover is not None:
        marks["hovertext"] = [text(each) for each in series.hover]
    if series.kind == "bars":
        marks |= {"type": "bar", "orientation": "h", "marker": {"color": style.colour}, "showlegend": False}
        return [marks | _error(series, "x")]
    size = 4 if series.faint else 5 if len(series.x) > 200 else 8
    opacity = 0.45 if series.faint else 0.7 if len(series.x) > 200 else 1
    marker = {"color": style.colour, "symbol": style.marker, "size": size, "opacity": opacity}
    marks |= {"type": "scatter", "marker": marker}
    if series.images is not None:
        marks["images"] = list(series.images)  # for the page, which draws them over the marks
    if series.kind == "points":
        return [marks | {"mode": "markers"} | _error(series, "y")]
    few = len(series.x) <= 20 and series.style is not None  # marks on every point of a long curve would hide it
    marks |= {
        "mode": "lines+markers" if few else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
    }
    return [*_band(series, common, style), marks]


def _band(series: Series, common: dict[str, Any], style: Style) -> list[dict[str, Any]]:
    """A closed outline: up along the upper edge, back along the lower one; a gap in the data leaves no band there."""
    if series.low is None or series.high is None:
        return []
    x, low, high = (np.asarray(each, dtype=np.float64) for each in (series.x, series.low, series.high))
    real = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[real], low[real], high[real]
    outline = {"x": _plain([*x, *x[::-1]]), "y": _plain([*high, *low[::-1]]), "type": "scatter", "mode": "lines"}
    look = {"fill": "toself", "fillcolor": _faded(style.colour), "line": {"width": 0}, "hoverinfo": "skip"}
    return [common | outline | look | {"showlegend": False}]


def _error(series: Series, axis: str) -> dict[str, Any]:
    if series.low is None or series.high is None:
        return {}
    centre = np.asarray(series.x if axis == "x" else series.y, dtype=np.float64)
    plus, minus = np.asarray(series.high) - centre, centre - np.asarray(series.low)
    return {f"error_{axis}": {"type": "data", "array": _plain(plus), "arrayminus": _plain(minus), "thickness": 1.5}}


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.13)"


def _plain(values: Iterable[Any]) -> list[Any]:
    """JSON has no NaN; five digits are more than a screen shows. Text is a name on an axis."""
    return [text(v) if isinstance(v, str) else float(f"{v:.5g}") if np.isfinite(v) else None for v in values]
