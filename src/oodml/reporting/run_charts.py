"""Charts of single runs: structure (ooDML fig. 4), capacity (fig. 5), few shots (fig. 7), training curves, spectra."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from oodml.evaluation.estimate import Estimate, estimate
from oodml.evaluation.spectrum import spectrum
from oodml.reporting.chart import Chart, Series, View, Views
from oodml.reporting.report_data import ReportData, mean_sd, read_json
from oodml.reporting.shift_charts import SHIFT, mark_text, run_text
from oodml.study.correlations import scaled, structure_correlation
from oodml.study.table import Row

_STEPS = 60  # points of a training curve; more are not visible on a screen
_STRUCTURE = ("rho", "pi_ratio", "pi_intra", "pi_inter", "uniformity", "alignment")


def structure_chart(data: ReportData) -> Chart | None:
    """Structure of the embedding space against the score, both scaled to [0, 1] within the split (fig. 4)."""
    title = "Structure of the embedding space against performance"
    return _structure_chart(data, "structure", title, data.trained)


def discriminative_chart(data: ReportData) -> Chart | None:
    """The same of the methods that train on a loss alone, where there are others too."""
    methods = data.table.discriminative
    if len(methods) == len(data.trained):
        return None
    return _structure_chart(data, "structure-discriminative", "The same of purely discriminative methods", methods)


def _structure_chart(data: ReportData, name: str, title: str, methods: list[str]) -> Chart | None:
    table = data.table
    sides = [side for side in ("train", "test") if any(row.structure.get(side) for row in table.rows)]
    names = [measure for measure in _STRUCTURE if all(_varies(data, measure, side) for side in sides)]
    if not sides or not names or len(methods) < 3:
        return None
    views: Views = {
        (measure, side): _structure_view(data, measure, side, methods) for measure in names for side in sides
    }
    return Chart(
        name,
        title,
        views,
        {"structure": names, "classes": sides},
        "A mark is a method on a split. Both values are scaled to [0, 1] over the methods of the split, so that its "
        "difficulty has no influence. Dotted: the least-squares trends over all splits and over the default split.",
    )


def _varies(data: ReportData, name: str, side: str) -> bool:
    known = {each for row in data.table.rows for each in row.structure.get(side, ())}
    return name in known and bool(np.nanstd(data.table.structure(name, side)) > 0)


def _structure_view(data: ReportData, name: str, side: str, methods: list[str]) -> View:
    table, metric = data.table, data.metric
    places = [data.style(method) for method in methods]
    measures = mean_sd(table.structure(name, side))[0][places]
    scores = mean_sd(table.scores(metric))[0][places]
    missing = np.isnan(measures) | np.isnan(scores)
    x, y = (scaled(np.where(missing, np.nan, each)) for each in (measures, scores))
    series = []
    for i, method in enumerate(methods):
        texts = [
            mark_text(data, method, split, f"{name} {measure:.3f}, {metric} {100 * score:.1f}")
            for split, measure, score in zip(table.splits, measures[i], scores[i], strict=True)
        ]
        series.append(Series(method, x[i], y[i], "points", None, None, texts, places[i]))
    found = structure_correlation(table, name, metric, side, methods=methods)
    parts = []
    for trend, called, where in (
        (found.overall, "trend", "over all splits"),
        (found.default_only, f"trend, {found.default}", f"on {found.default}"),
    ):
        if np.isfinite(trend.slope):
            ends = np.array([trend.measure.min(), trend.measure.max()])
            series.append(Series(called, ends, trend.intercept + trend.slope * ends))
            parts.append(f"{trend.spearman:+.2f} {where}")
    note = f"Rank correlation {', '.join(parts)}." if parts else ""
    return View(series, f"{name} of the {side} classes (scaled)", f"{metric} (scaled)", note=note)


def capacity_chart(data: ReportData) -> Chart | None:
    """Score against the shift by backbone or embedding size, averaged over the methods (fig. 5)."""
    axes = {}
    for key, label in (("backbone", "backbone"), ("embedding_dim", "embedding size")):
        values = {data.result(row).get("config", {}).get(key) for row in data.table.rows if row.path}
        if len(values - {None}) > 1:
            axes[key] = label
    if not axes:
        return None
    views: Views = {}
    for key, label in axes.items():
        groups = defaultdict(list)
        for row in data.table.rows:
            if (value := data.result(row).get("config", {}).get(key)) is not None:
                groups[value].append(row)
        for metric in data.metrics:
            ordered = sorted(groups.items(), key=lambda item: (str(type(item[0])), item[0]))
            series = [_mean_line(data, str(v), rows, metric, i) for i, (v, rows) in enumerate(ordered)]
            views[metric, label] = View(series, SHIFT, f"{metric} (%)")
    switches = {"metric": data.metrics, "by": list(axes.values())}
    return Chart("capacity", "Capacity", views, switches, "Averaged over methods and seeds.")


def _mean_line(data: ReportData, name: str, rows: list[Row], metric: str, place: int) -> Series:
    values = [[100 * r.scores[metric] for r in rows if r.split == split] for split in data.table.splits]
    means = [float(np.mean(v)) if v else np.nan for v in values]
    hover = [
        f"{name}, {split}\n{mean:.1f}, mean of {len(v)} runs"
        for split, mean, v in zip(data.table.splits, means, values, strict=True)
    ]
    return Series(name, data.table.measured_fids, means, hover=hover, style=place)


def few_shot_chart(data: ReportData) -> Chart | None:
    """The gain of adapting to a few labelled images of the new classes, against the shift (fig. 7)."""
    files = [(row, row.path / "few_shot.json") for row in data.table.rows if row.path]
    found = [(row, read_json(file)) for row, file in files if file.exists()]
    if not found:
        return None
    shots = sorted({n for _, by_shots in found for n in by_shots}, key=int)
    metrics = list(next(iter(found[0][1].values()))["few"])
    views: Views = {}
    for metric in metrics:
        for n in shots:
            series = []
            for method in data.trained:
                rows = [(r, f[n]) for r, f in found if r.method == method and n in f and metric in f[n]["few"]]
                if rows:
                    series.append(_shot_series(data, method, rows, metric, n))
            views[metric, n] = View(series, SHIFT, f"{metric}: {n}-shot − zero-shot (points)")
    return Chart(
        "few-shot",
        "Gain from a few labelled images",
        views,
        {"few-shot metric": metrics, "shots": shots},
        "Gain of fine-tuning on a few images of each new class over none, on the same queries; band: 95 % interval "
        "over episodes, each a mean over seeds.",
    )


def _shot_series(data: ReportData, method: str, rows: list[tuple[Row, Any]], metric: str, shots: str) -> Series:
    by_split = defaultdict(list)
    for row, found in rows:
        zero, few = np.array(found["zero"][metric][2]), np.array(found["few"][metric][2])
        by_split[row.split].append((row, 100 * (few - zero)))
    splits = [split for split in data.table.splits if split in by_split]
    gains = [_over_episodes([gain for _, gain in by_split[split]]) for split in splits]
    means, half = [gain.mean for gain in gains], [0.0 if gain.n == 1 else gain.half_width for gain in gains]
    texts = [
        run_text(by_split[s][0][0], f"{shots}-shot gain {m:+.1f} ± {h:.1f} points, {g.n} episodes")
        for s, m, h, g in zip(splits, means, half, gains, strict=True)
    ]
    fids = [dict(zip(data.table.splits, data.table.measured_fids, strict=True))[s] for s in splits]
    low, high = [m - h for m, h in zip(means, half, strict=True)], [m + h for m, h in zip(means, half, strict=True)]
    return Series(method, fids, means, "line", low, high, texts, data.style(method))


def _over_episodes(gains: list[np.ndarray]) -> Estimate:
    """Over episodes, each the mean over seeds: the seeds of an episode share its support set."""
    common = min(map(len, gains))
    return estimate(np.mean([gain[:common] for gain in gains], axis=0).tolist())


def spectra_chart(data: ReportData) -> Chart | None:
    """Singular values of the test embeddings, as shares: a slow fall uses many directions."""
    views: Views = {}
    for split in data.table.splits:
        series = []
        for method in data.trained:
            row = _first_with(data, method, split, "embeddings.safetensors")
            if row is not None:
                values = spectrum(load_file(row.path / "embeddings.safetensors")["embeddings"].astype(np.float32))
                share = 100 * (values / values.sum().clamp(min=1e-12)).numpy()
                share = np.where(share > 1e-7, share, np.nan)  # a logarithmic axis has no zero
                places = np.arange(1, len(share) + 1)
                hover = [run_text(row, f"value {i}: {s:.3f} % of the sum") for i, s in zip(places, share, strict=True)]
                keep = _thinned(len(share), 128)
                kept = [hover[i] for i in keep]
                style = data.style(method)
                series.append(Series(method, places[keep], share[keep], "line", None, None, kept, style))
        if series:
            views[split,] = View(series, "singular value, largest first", "share of the sum (%)", log_y=True)
    if not views:
        return None
    caption = "Of the test embeddings of the first seed. Steep: few directions carry most of the information."
    return Chart("spectra", "Singular values", views, {"split": [key[0] for key in views]}, caption)


def _first_with(data: ReportData, method: str, split: str, file: str) -> Any:
    rows = (row for row in data.rows(method, split) if row.path and (row.path / file).exists())
    return min(rows, key=lambda row: row.seed, default=None)


def training_chart(data: ReportData) -> Chart | None:
    """Loss and scores during training, averaged over seeds."""
    curves: dict[tuple[str, str], list[tuple[str, list[float], list[float]]]] = defaultdict(list)
    for split in data.table.splits:
        for method in data.trained:
            histories = [read_history(row.path) for row in data.rows(method, split) if row.path]
            for quantity, (steps, values) in _mean_history([h for h in histories if h]).items():
                curves[quantity, split].append((method, steps, values))
    long_enough = {key for key, lines in curves.items() if any(len(steps) > 1 for _, steps, _ in lines)}
    quantities = list(dict.fromkeys(quantity for quantity, split in curves if (quantity, split) in long_enough))
    splits = [split for split in data.table.splits if any((q, split) in curves for q in quantities)]
    if not quantities:
        return None
    views: Views = {}
    for quantity in quantities:
        for split in splits:
            series = [
                Series(
                    method,
                    steps,
                    values,
                    hover=[f"{method}, {split}\nstep {int(s)}: {v:.4g}" for s, v in zip(steps, values, strict=True)],
                    style=data.style(method),
                )
                for method, steps, values in curves[quantity, split]
            ]
            views[quantity, split] = View(series, "step", quantity if quantity == "loss" else f"{quantity} (%)")
    return Chart("training", "Training", views, {"quantity": quantities, "split": splits}, "Mean over seeds.")


def read_history(run: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl; a last line cut off by a kill is left out."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _mean_history(histories: list[list[dict[str, Any]]]) -> dict[str, tuple[list[float], list[float]]]:
    """Quantity to (steps, mean over the runs that have the step)."""
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for history in histories for row in history):
        found = {f"{part} {m}": 100 * v for part in ("val", "test") for m, v in (row.get(part) or {}).items()}
        if row.get("loss") is not None:
            found["loss"] = row["loss"]
        for quantity, value in found.items():
            values[quantity][row["step"]].append(value)
    result = {}
    for quantity, by_step in sorted(values.items(), key=lambda item: (item[0] == "loss", item[0])):
        steps = sorted(by_step)
        steps = [steps[i] for i in _thinned(len(steps), _STEPS)]
        result[quantity] = ([float(s) for s in steps], [float(np.mean(by_step[step])) for step in steps])
    return result


def _thinned(n: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
