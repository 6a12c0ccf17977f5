"""The methods in their order as bars: AGS over rising shift (ooDML fig. 3), or the mean where there is one shift."""

from __future__ import annotations

from oodml.evaluation.estimate import Estimate, share_interval, share_text
from oodml.reporting.chart import Chart, Series, View, Views
from oodml.reporting.material import Material
from oodml.study.leaderboard import ranking


def ranking_chart(material: Material) -> Chart:
    """AGS of every ranked method and of the untrained backbone, best on top, with 95 % intervals over seeds (fig. 3).

    Where all splits are of one shift there is no AGS: the mean over them.
    """
    views: Views = {}
    rising = material.table.shifts > 1
    caption = "Area under the curve of the score over the normalised shift." if rising else ""
    if len(material.table.seeds) > 1:
        caption += " Lines: 95 % interval over seeds."
    for metric in material.metrics:
        what = "AGS" if rising else metric
        ranked = ranking(material.table, metric)
        bars = {method: (found.mean, _bar(material, method, found, what)) for method, found in ranked.items()}
        views[metric,] = View([bar for _, bar in sorted(bars.values(), key=lambda each: each[0])], f"{what} (%)", "")
    height = 110 + 34 * max(len(view.series) for view in views.values())
    title = "Summed up over all splits: AGS" if rising else "Methods compared"
    return Chart("ags", title, views, {"metric": material.metrics}, caption.strip(), height=height)


def _bar(material: Material, method: str, found: Estimate, what: str) -> Series:
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
        material.style(method),
    )
