"""2-D maps of an easy, a medium and a hard split: how far apart train and test classes lie (ooDML suppl. fig. 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.data import Dataset, load_dataset
from oodml.reporting.chart import Chart, Series, View
from oodml.reporting.material import Material
from oodml.reporting.split_figures import tsne
from oodml.study.splits import split_features

_POINTS = 1200  # pictures on a map; t-SNE of more takes longer than the rest of the report


def map_charts(material: Material) -> tuple[list[Chart], list[str]]:
    """Three maps, side by side, and a note where they should be there but cannot.

    There are none where the study did not build its splits: then there are no features to show.
    """
    held = material.json("splits.json")
    splits = sorted((held or {}).get("splits", []), key=lambda split: split["fid"] or 0)
    recipe = splits[0].get("provenance", {}).get("recipe") if splits else None
    spec = next((result["config"]["dataset"] for result in material.results.values() if "config" in result), None)
    if not recipe or spec is None or len(splits) < 3:
        return [], []
    try:
        features, sample = split_features(recipe, load_dataset(spec))
    except OodmlError as error:
        return [], [f"No maps of the splits: {error}"]
    order = np.random.default_rng(0).permutation(len(sample))[:_POINTS]
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
        caption="t-SNE of the features that the splits were built from; a dot is a picture." if level == "easy" else "",
        width="third",
        height=320,
    )
