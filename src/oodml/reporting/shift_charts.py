"""Scores against the shift (ooDML figs. 1, 2), AGS (fig. 3), other encoders (fig. 6) and the forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from oodml.evaluation.estimate import Estimate, share_interval, share_text
from oodml.reporting.chart import Chart, Series, View, Views
from oodml.reporting.report_data import ReportData, mean_sd
from oodml.reporting.words import forecast_sentence
from oodml.study.leaderboard import ranking
from oodml.study.table import Row

SHIFT = "shift between train and test classes (FID)"
SCORE, GAIN = "score", "gain over untrained"


def score_chart(data: ReportData) -> Chart:
    """Score of every method against the shift, band: standard deviation over seeds; dots: the single runs."""
    views: Views = {}
    for metric in data.metrics:
        for show, grid in _shown(data, metric).items():
            means, sds = mean_sd(100 * grid)
            series = _lines(data, metric, show, means, sds)
            if show == SCORE:
                series += _scored_lines(data, data.scored, means)
            what = metric if show == SCORE else f"{metric}, trained − untrained"
            label = f"{what} (%)" if show == SCORE else f"{what} (points)"
            views[metric, show] = View(series, SHIFT, label, note=_missing(grid, metric))
    return Chart(
        "score",
        "Score against the shift",
        views,
        _switches(data),
        "Mean over seeds; the band is one standard deviation, faint dots are single runs."
        if len(data.table.seeds) > 1
        else "One seed, so there is no band to distinguish a difference from noise.",
        height=430,
    )


def _scored_lines(data: ReportData, kinds: Mapping[str, str], means: NDArray[np.float64]) -> list[Series]:
    """The lines of those that were scored by the metric."""
    scored = {method: kind for method, kind in kinds.items() if not np.isnan(means[data.style(method)]).all()}
    return [_scored_line(data, method, kind, means) for method, kind in scored.items()]


def _scored_line(data: ReportData, method: str, kind: str, means: NDArray[np.float64]) -> Series:
    place, splits = data.style(method), data.table.splits
    hover = [f"{method} ({kind}), {split}: {v:.1f}" for split, v in zip(splits, means[place], strict=True)]
    return Series(method, data.table.measured_fids, means[place], hover=hover, style=place)


def difference_chart(data: ReportData) -> Chart | None:
    """Difference to the mean over methods on each split (fig. 2, below); one method has no other to differ from."""
    if len(data.trained) < 2:
        return None
    views: Views = {}
    for metric in data.metrics:
        for show, grid in _shown(data, metric).items():
            _, sds = mean_sd(100 * grid)
            differences = 100 * data.table.difference_to_mean(metric, of_gain=show == GAIN)
            series = list(_lines(data, metric, show, differences, sds, runs_too=False))
            views[metric, show] = View(series, SHIFT, "difference (points)", note=_missing(grid, metric))
    return Chart("difference", "Difference to the mean over methods", views, _switches(data), follows=True, height=320)


def generic_chart(data: ReportData) -> Chart | None:
    """Encoders that were not trained here next to the best and the worst trained method (fig. 6)."""
    if not data.external:
        return None
    views: Views = {}
    for metric in data.metrics:
        means = mean_sd(100 * data.table.scores(metric))[0]
        order = sorted(data.trained, key=lambda m: np.nanmean(means[data.style(m)]))
        ends = {order[-1]: "best trained", order[0]: "worst trained"} if order else {}
        shown = {**data.scored, **ends}
        series = _scored_lines(data, shown, means)
        views[metric,] = View(series, SHIFT, f"{metric} (%)")
    return Chart(
        "generic",
        "Encoders without training here",
        views,
        {"metric": data.metrics},
        "Encoders as they are, next to the best and the worst trained method.",
    )


def progression_chart(data: ReportData) -> Chart | None:
    """FID of every candidate split of the build, the chosen ones marked (fig. 1)."""
    steps = data.json("progression.json")
    if not steps:
        return None
    chosen = [step for step in steps if step["chosen"]]
    every = Series("candidates", [s["step"] for s in steps], [s["fid"] for s in steps], style=0)
    marked = Series(
        "chosen splits",
        [s["step"] for s in chosen],
        [s["fid"] for s in chosen],
        "points",
        hover=[f"chosen: step {s['step']}, FID {s['fid']:.1f}" for s in chosen],
        style=1,
    )
    view = View([every, marked], "step of the construction", "FID")
    caption = "Swaps, then removals of classes."
    if steps[0]["step"] < 0:
        caption = f"From step 0 to the right: {caption.lower()} From there to the left: swaps to easier splits."
    if not np.isclose([s["fid"] for s in chosen], min(data.table.measured_fids), rtol=1e-3).any():
        # An audit measures its splits again, on the scale that a target without classes can be placed on.
        caption += " This FID is between class means, by which splits are built; elsewhere here it is between images."
    return Chart("progression", "How the splits were built", {(): view}, caption=caption)


def forecast_chart(data: ReportData) -> Chart | None:
    """The measured curve and what to expect at the target's shift."""
    found = data.json("forecast.json")
    if not found or not found.get("curve"):
        return None
    curve, target, metric = found["curve"], found.get("target"), found["metric"]
    series = [
        Series(
            found.get("method") or "measured",
            [p["fid"] for p in curve],
            [100 * p["value"] for p in curve],
            "line",
            [100 * _or(p.get("low"), p["value"]) for p in curve],
            [100 * _or(p.get("high"), p["value"]) for p in curve],
            [f"{p['split']}: FID {p['fid']:.1f}, {metric} {100 * p['value']:.1f}" for p in curve],
            0,
        )
    ]
    note = ""
    if target:
        inside = bool(target.get("inside"))
        series.append(
            Series(
                target["name"],
                [target["fid"]],
                [100 * target["value"]],
                "points",
                [100 * _or(target.get("low"), target["value"])] if inside else None,
                [100 * _or(target.get("high"), target["value"])] if inside else None,
                [f"{target['name']}: FID {target['fid']:.1f}, expected {metric} {100 * target['value']:.1f}"],
                1,
            )
        )
        note = forecast_sentence(found)
        if not inside:
            note += " The mark is at the nearest measured value."
    if not note and (error := found.get("leave_one_out_error")) is not None:
        note = f"Left-out splits were predicted to {100 * error:.1f} points."
    if found.get("gallery"):
        note += " Gallery of {} classes with {} images each.".format(*found["gallery"])
    view = View(series, SHIFT, f"{metric} (%)", note=note.strip())
    return Chart("forecast", "What to expect on the target", {(): view})


def _or(value: float | None, other: float) -> float:
    return other if value is None or np.isnan(value) else value


def _missing(grid: NDArray[np.float64], metric: str) -> str:
    """Why a view is empty; embeddings of the untrained backbone are not kept, so some metrics lack their gain."""
    return f"The untrained backbone was not scored by {metric}: choose another metric." if np.isnan(grid).all() else ""


def _switches(data: ReportData) -> dict[str, list[str]]:
    return {"metric": data.metrics, "show": list(_shown(data, data.metric))}


def _shown(data: ReportData, metric: str) -> dict[str, NDArray[np.float64]]:
    """What the switch `show` offers. The gain of a metric without an untrained score is empty: all views must exist."""
    grids = {SCORE: data.table.scores(metric)}
    if any(row.untrained for row in data.table.rows):
        grids[GAIN] = data.table.gain(metric)
    return grids


def _lines(
    data: ReportData,
    metric: str,
    show: str,
    means: NDArray[np.float64],
    sds: NDArray[np.float64],
    runs_too: bool = True,
) -> list[Series]:
    table, series = data.table, []
    for method in data.trained:
        place = data.style(method)
        mean, sd = means[place], np.nan_to_num(sds[place])
        hover = [
            mark_text(data, method, split, f"{value:.1f}" + (f" ± {spread:.1f} over seeds" if spread else ""))
            for split, value, spread in zip(table.splits, mean, sd, strict=True)
        ]
        low, high = (mean - sd, mean + sd) if sd.any() else (None, None)
        series.append(Series(method, table.measured_fids, mean, "line", low, high, hover, place))
        if runs_too and len(table.seeds) > 1:
            rows = [row for row in data.rows(method) if metric in row.scores]
            values = [100 * _value(row, metric, show) for row in rows]
            texts = [run_text(row, f"{value:.1f}") for row, value in zip(rows, values, strict=True)]
            fids = [math.nan if row.fid is None else row.fid for row in rows]
            series.append(Series(method, fids, values, "points", None, None, texts, place, listed=False, faint=True))
    return series


def _value(row: Row, metric: str, show: str) -> float:
    return row.scores[metric] - (row.untrained.get(metric, np.nan) if show == GAIN else 0)


def mark_text(data: ReportData, method: str, split: str, value: str) -> str:
    """The runs behind the mark of a method on a split."""
    runs = ", ".join(row.path.name[:8] for row in data.rows(method, split) if row.path)
    return f"{method}, {split}\n{value}" + (f"\nruns {runs}" if runs else "")


def run_text(row: Row, value: str) -> str:
    """The run behind a mark."""
    name = f"\nrun {row.path.name}" if row.path else ""
    return f"{row.method}, {row.split}, seed {row.seed}\n{value}{name}"


def ranking_chart(data: ReportData) -> Chart:
    """AGS of every ranked method and of the untrained backbone, best on top, with 95 % intervals over seeds (fig. 3).

    Where all splits are of one shift there is no AGS: the mean over them.
    """
    views: Views = {}
    rising = data.table.shifts > 1
    caption = "Area under the curve of the score over the normalised shift." if rising else ""
    if len(data.table.seeds) > 1:
        caption += " Lines: 95 % interval over seeds."
    for metric in data.metrics:
        what = "AGS" if rising else metric
        ranked = ranking(data.table, metric)
        bars = {method: (found.mean, _bar(data, method, found, what)) for method, found in ranked.items()}
        views[metric,] = View([bar for _, bar in sorted(bars.values(), key=lambda each: each[0])], f"{what} (%)", "")
    height = 110 + 34 * max(len(view.series) for view in views.values())
    title = "Summed up over all splits: AGS" if rising else "Methods compared"
    return Chart("ags", title, views, {"metric": data.metrics}, caption.strip(), height=height)


def _bar(data: ReportData, method: str, found: Estimate, what: str) -> Series:
    low, high = share_interval(found.mean, found.half_width)
    sure = found.n > 1
    seeds = f"{found.n} seeds" if sure else "one seed"
    hover = f"{method}: {what} {share_text(found.mean, found.half_width)}, {seeds}"
    return Series(
        method,
        [100 * found.mean],
        [method],
        "bars",
        [100 * low] if sure else None,
        [100 * high] if sure else None,
        [hover],
        data.style(method),
    )
