"""Retrieval galleries: the worst failures of a method with what it returned instead, and the classes it confuses."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from oodml._errors import OodmlError
from oodml.data import Dataset, load_dataset
from oodml.data.images import load_images
from oodml.evaluation import find_neighbours
from oodml.reporting.report_data import ReportData
from oodml.reporting.thumbnails import thumbnails
from oodml.study.leaderboard import ranking
from oodml.study.table import Row

IMAGES = 2400  # in a page, at most: about 6 MB of small photographs
QUERIES = 1000  # searched for failures, spread evenly over the test set …
SEARCHED = 40_000  # … but not more in all runs together, which keeps a large study's report within seconds
NEIGHBOURS = 5  # shown per query
DEPTH = 50  # ranks in which the first right image is searched


def galleries(data: ReportData) -> tuple[dict[str, Any] | None, list[str]]:
    """Failures and confusions of every method and split as plain JSON, and notes on what is left out."""
    rows = _one_run_each(data)
    if not rows:
        return None, []
    shown = int(np.clip(IMAGES // (len(rows) * (1 + NEIGHBOURS)) - 1, 2, 8))
    searched = int(np.clip(SEARCHED // len(rows), 100, QUERIES))
    sets = _Datasets()
    items, wanted, notes = [], {}, []
    for row in rows:
        try:
            dataset = sets.of(data.result(row))
        except OodmlError as error:
            notes.append(f"No images of {row.method} on {row.split}: {error}")
            continue
        assert row.path is not None
        item = inspect_run(row.path, dataset, shown, searched)
        items.append({"method": row.method, "split": row.split, "seed": row.seed, **item})
        for index in _images_of(item):
            wanted[dataset.fingerprint, index] = dataset
    if not items:
        return None, _summarised(notes)
    images, unreadable = thumbnails(wanted)
    return {"items": items, "images": images}, _summarised(notes) + unreadable


def inspect_run(run: Path, dataset: Dataset, shown: int, searched: int = QUERIES) -> dict[str, Any]:
    """The `shown` worst failures of a run (one per class) and its most frequent confusions."""
    stored = load_file(run / "embeddings.safetensors")
    embeddings = torch.from_numpy(stored["embeddings"].astype(np.float32))
    labels, images = stored["labels"], stored["indices"]
    queries = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), searched)).round().astype(np.int64))
    own = torch.from_numpy(queries)
    found = find_neighbours(embeddings[own], embeddings, min(DEPTH, len(labels) - 1), own=own)
    indices, distances = found.indices.numpy(), found.distances.numpy()
    right = labels[indices] == labels[queries, None]
    rank = np.where(right.any(axis=1), right.argmax(axis=1), right.shape[1])  # wrong images before the first right
    possible = np.bincount(labels)[labels[queries]] > 1  # a class with one image has nothing to find
    failures = np.flatnonzero((rank > 0) & possible)
    order = failures[np.lexsort((distances[failures, 0], -rank[failures]))]
    order = order[_first_of_each(labels[queries[order]])][:shown]

    def image(position: int) -> list[Any]:
        return [str(images[position]), dataset.classes[labels[position]], dataset.path(int(images[position]))]

    return {
        "data": dataset.fingerprint,
        "searched": len(queries),
        "recall": float((rank == 0).mean()),
        "queries": [
            {
                "image": image(int(queries[i])),
                "first": int(rank[i]) + 1 if right[i].any() else None,
                "found": [
                    [*image(int(j)), bool(ok), round(float(d), 4)]
                    for j, ok, d in zip(
                        indices[i, :NEIGHBOURS], right[i, :NEIGHBOURS], distances[i, :NEIGHBOURS], strict=True
                    )
                ],
            }
            for i in order
        ],
        "confusions": _confusions(queries, indices[:, 0], labels, image),
    }


def _confusions(queries: np.ndarray, nearest: np.ndarray, labels: np.ndarray, image: Any, most: int = 10) -> list[Any]:
    """Class pairs most often mistaken at the first neighbour, in either direction: [count, a query, its neighbour]."""
    wrong = np.flatnonzero(labels[queries] != labels[nearest])
    pairs = [tuple(sorted((int(labels[queries[i]]), int(labels[nearest[i]])))) for i in wrong]
    example = {pair: i for i, pair in zip(wrong[::-1], pairs[::-1], strict=True)}
    counted = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))[:most]
    return [[n, image(int(queries[example[p]])), image(int(nearest[example[p]]))] for p, n in counted]


def _images_of(item: dict[str, Any], confusions: int = 3) -> list[int]:
    shown = [query["image"] for query in item["queries"]]
    shown += [found for query in item["queries"] for found in query["found"]]
    shown += [each for pair in item["confusions"][:confusions] for each in pair[1:]]
    return [int(each[0]) for each in shown]


def _first_of_each(values: np.ndarray) -> np.ndarray:
    return np.sort(np.unique(values, return_index=True)[1])


def _one_run_each(data: ReportData) -> list[Row]:
    """The first seed of every method and split that kept its embeddings, those of the best method first."""
    rows: dict[tuple[str, str], Row] = {}
    for row in sorted(data.table.rows, key=lambda row: row.seed):
        if row.path is not None and (row.path / "embeddings.safetensors").exists():
            rows.setdefault((row.method, row.split), row)
    methods = dict.fromkeys([*ranking(data.table, data.metric), *data.table.methods])
    order = [(method, split) for method in methods for split in data.table.splits]
    return [rows[place] for place in order if place in rows]


class _Datasets:
    """The images that runs were tested on, each set loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[str, Dataset | OodmlError] = {}

    def of(self, result: dict[str, Any]) -> Dataset:
        spec, known = result["config"]["dataset"], result["dataset"]["fingerprint"]
        key = f"{spec}{known}"
        if key not in self._loaded:
            try:
                self._loaded[key] = _load(spec, known)
            except OodmlError as error:
                self._loaded[key] = error
        found = self._loaded[key]
        if isinstance(found, OodmlError):
            raise found
        return found


def _load(spec: Any, fingerprint: str) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has already warned, and its notes are on the page
        dataset = load_dataset(spec)
        if dataset.fingerprint != fingerprint:
            dataset = load_images(dataset, quiet=True).dataset  # training leaves out what it cannot read
    if dataset.fingerprint != fingerprint:
        raise OodmlError(f"the dataset {dataset.name!r} has changed since the run.")
    return dataset


def _summarised(notes: list[str]) -> list[str]:
    return notes if len(notes) < 3 else [notes[0], f"The same for {len(notes) - 1} more runs."]
