"""Figures of a series of splits: the distance at every step of the construction, and a map of train and test images."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._files import atomic_file
from oodml.data import Dataset, load_dataset
from oodml.reporting.chart import COLOURS, GREY, INK, LIGHT_GREY, Chart, Series, View
from oodml.reporting.report_data import ReportData
from oodml.study.splits import split_features

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAIN, TEST = COLOURS[:2]
STAGES = {"reverse": "easier (reversed swaps)", "swap": "swapping", "removal": "removal"}
PROJECTIONS = ("auto", "umap", "tsne", "pca")
MAP_POINTS = 1200  # images on a map of the page; t-SNE of more takes longer than the rest of the report


def draw_progression(path: str | Path, progression: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Distance at every step of a construction, exact and by means alone; chosen steps are numbered by `chosen`."""
    if not progression:
        raise OodmlError("These splits have no progression to draw: only a series made by build_splits has one.")
    figure = _figure(8.2, 4.4)
    axes = figure.add_subplot()
    at_start = next(i for i, step in enumerate(progression) if step["stage"] == "start")
    x = np.arange(len(progression)) - at_start
    exact = np.array([step["fid"] for step in progression])
    axes.plot(x, exact, color=INK, lw=1.8, label="FID")
    axes.plot(x, [s["approximate_fid"] for s in progression], color=GREY, lw=1.3, ls="--", label="its mean term")
    _shade_stages(axes, progression, at_start, top=exact.max() * 1.14)
    for i, step in zip(x, progression, strict=True):
        if "chosen" in step:
            axes.plot(i, step["fid"], "o", ms=14, color="white", mec=TEST, mew=1.8, zorder=3)
            axes.annotate(str(step["chosen"]), (i, step["fid"]), ha="center", va="center", fontsize=8, zorder=4)
    axes.set(xlabel="steps from the start", ylabel="distance between train and test", title=title)
    axes.set_xlim(x[0] - 1.2, x[-1] + 1.2)
    axes.set_ylim(0, exact.max() * 1.14)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.78))
    _save(figure, path)


def draw_map(
    path: str | Path,
    features: np.ndarray,
    panels: Sequence[tuple[str, np.ndarray, np.ndarray]],
    *,
    method: str = "auto",
    most_points: int = 4000,
    seed: int = 0,
) -> str:
    """One map of the images, drawn once per split with its train and test images coloured.

    Args:
        features: (N, D); `panels` are (title, rows of the training side, rows of the test side).
        method: "umap", "tsne", "pca", or "auto": UMAP if it is installed, otherwise t-SNE.

    Returns:
        The name of the projection used.
    """
    shown = np.unique(np.concatenate([np.concatenate([train, test]) for _, train, test in panels]))
    if len(shown) > most_points:
        shown = np.sort(np.random.default_rng(seed).choice(shown, most_points, replace=False))
    method, points = project(features[shown], method, seed)
    figure = _figure(4.1 * len(panels), 4.6)
    for column, (title, train, test) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), column + 1)
        in_train, in_test = np.isin(shown, train), np.isin(shown, test)
        left_out = ~in_train & ~in_test
        axes.scatter(
            points[left_out, 0],
            points[left_out, 1],
            s=4,
            color=LIGHT_GREY,
            lw=0,
            label="left out" if left_out.any() else None,
        )
        both = np.flatnonzero(~left_out)
        both = both[np.random.default_rng(seed).permutation(len(both))]  # so that neither side covers the other
        axes.scatter(points[both, 0], points[both, 1], s=6, c=np.where(in_train[both], TRAIN, TEST), lw=0, alpha=0.75)
        axes.set_title(title, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    _legend(figure, any(len(np.setdiff1d(shown, np.concatenate([a, b]))) for _, a, b in panels))
    _save(figure, path)
    return method


def check_projection(method: str) -> None:
    """Raise for a projection that is unknown or not installed."""
    if method not in PROJECTIONS:
        raise unknown_name("projection", method, PROJECTIONS)
    if method == "umap" and not _has_umap():
        raise OodmlError("UMAP is not installed: pip install umap-learn, or choose tsne or pca.")


def _has_umap() -> bool:
    return importlib.util.find_spec("umap") is not None


def project(features: np.ndarray, method: str = "auto", seed: int = 0) -> tuple[str, np.ndarray]:
    """(N, 2) positions of the rows on a map, and the method that made it."""
    check_projection(method)
    if method == "pca" or min(features.shape) <= 2 or len(features) < 10:
        return "pca", _principal(features, 2, seed)
    if method == "umap" or (method == "auto" and _has_umap()):
        import umap

        return "umap", umap.UMAP(random_state=seed, n_jobs=1).fit_transform(_principal(features, 50, seed))
    return "tsne", tsne(features, seed)


def tsne(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """(N, 2) t-SNE of the leading principal components; equal for equal seeds. The maps of the report use it too."""
    from sklearn.manifold import TSNE

    few = _principal(features, 30, seed)
    perplexity = min(30.0, (len(few) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=seed).fit_transform(few)


def _principal(features: np.ndarray, dimensions: int, seed: int) -> np.ndarray:
    from sklearn.decomposition import PCA

    return PCA(min(dimensions, *features.shape), random_state=seed).fit_transform(features)


def _shade_stages(axes: Any, progression: Sequence[Mapping[str, Any]], at_start: int, top: float) -> None:
    stages = [step["stage"] for step in progression]
    for number, (stage, title) in enumerate(STAGES.items()):
        where = [i - at_start for i, each in enumerate(stages) if each == stage]
        if where:
            axes.axvspan(where[0] - 0.5, where[-1] + 0.5, color=INK, alpha=0.035 + 0.03 * (number % 2), lw=0)
            axes.text((where[0] + where[-1]) / 2, top * 0.975, title, ha="center", va="top", color=GREY, fontsize=9)
    axes.axvline(0, color=GREY, lw=1, ls=":")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _legend(figure: Figure, left_out: bool) -> None:
    from matplotlib.lines import Line2D

    entries = [("train", TRAIN), ("test", TEST), *([("left out", LIGHT_GREY)] if left_out else [])]
    marks = [Line2D([], [], marker="o", ls="", color=colour, label=name) for name, colour in entries]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False)


def _save(figure: Figure, path: str | Path) -> None:
    path = Path(path)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=140)


def map_charts(data: ReportData) -> tuple[list[Chart], list[str]]:
    """Three maps, side by side, and a note where they should be there but cannot.

    There are none where the study did not build its splits: then there are no features to show.
    """
    held = data.json("splits.json")
    splits = sorted((held or {}).get("splits", []), key=lambda split: split["fid"] or 0)
    recipe = splits[0].get("provenance", {}).get("recipe") if splits else None
    spec = next((result["config"]["dataset"] for result in data.results.values() if "config" in result), None)
    if not recipe or spec is None or len(splits) < 3:
        return [], []
    try:
        features, sample = split_features(recipe, load_dataset(spec))
    except OodmlError as error:
        return [], [f"No maps of the splits: {error}"]
    order = np.random.default_rng(0).permutation(len(sample))[:MAP_POINTS]
    place = tsne(features[order])
    chosen = {"easy": splits[0], "medium": splits[len(splits) // 2], "hard": splits[-1]}
    return [_map(level, split, sample, order, place) for level, split in chosen.items()], []


def _map(level: str, split: dict[str, Any], sample: Dataset, order: np.ndarray, place: np.ndarray) -> Chart:
    series = []
    for style, side in enumerate(("train", "test")):
        here = np.isin(sample.labels[order], sample.class_ids(split[side]))
        texts = [f"{sample.classes[sample.labels[i]]}\n{sample.path(int(i))}" for i in order[here]]
        series.append(Series(f"{side} classes", place[here, 0], place[here, 1], "points", None, None, texts, style))
    return Chart(
        f"map-{level}",
        f"{level.capitalize()}: {split['name']}, FID {split['fid']:.4g}",
        {(): View(series, "", "", bare=True)},
        caption="t-SNE of the features that the splits were built from; a dot is an image." if level == "easy" else "",
        width="third",
        height=320,
    )
