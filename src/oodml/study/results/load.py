"""Read a study from its folder alone: no data set, no planning, only what stands there."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from oodml._errors import OodmlError
from oodml.losses import list_losses
from oodml.shift import names_by_content, official_at_hand
from oodml.study.migration import staleness
from oodml.study.plan import Place, load_plan, load_settings, saved_match, stored_splits
from oodml.study.plan.saved import SETTINGS
from oodml.study.results.matched import METRIC, matched_recall
from oodml.study.results.scored import scored_rows
from oodml.study.statistics import Row, StudyTable
from oodml.study.store import EMBEDDINGS, FEW_SHOT, RESULT, TRANSFER, Store, open_store
from oodml.training.job import EVALUATIONS
from oodml.training.result import final_scores

MATCHED = "matched.json"
READ = (
    EMBEDDINGS,
    RESULT,
    "metrics.jsonl",
    "config.yaml",
    FEW_SHOT,
    TRANSFER,
)  # what readers of a row's folder ask for


def load_study(folder: str | Path | Store) -> StudyTable:
    """The finished runs of a study as a table, and the encoders scored without training (`kind` of a row).

    The scores of a row are those of `oodml.training.Result.scores`. Beside the papers' recall every row has
    `recall@1:matched` at the selected evaluation: all test sets reduced to the smallest one. The table's `missing` are
    the runs of the plan that have not finished; its splits are recognised by their classes (`known_as`).
    """
    store = open_store(folder)
    places = load_plan(store)
    splits = stored_splits(store)
    fids = {split.name: split.fid or 0.0 for split in splits}
    results = {place.id: result for place in places if (result := store.result(place.id)) is not None}
    done = [place for place in places if place.id in results]
    rows = _trained_rows(done, results, fids, store) + scored_rows(store, splits, saved_match(store))
    if not rows:
        failures = [reason for place in places if (reason := store.failure(place.id))]
        last = failures[-1].strip().splitlines()[-1] if failures else "nothing was run"
        raise OodmlError(f"No run of the study has finished: {last}")
    missing = {place.id: place.method for place in places if place.id not in results}
    return StudyTable(rows, missing, known_splits(store))


def known_splits(store: Store) -> dict[str, frozenset[str]]:
    """The names that each split of a study goes by, told by its classes; one that names no dataset has the study's."""
    asked = _settings(store).get("dataset", "")
    dataset = asked["name"] if isinstance(asked, dict) else asked
    splits = [replace(split, dataset=split.dataset or dataset) for split in stored_splits(store)]
    official = {name: official_at_hand(name) for name in {split.dataset for split in splits}}
    return {split.name: names_by_content(split, official[split.dataset]) for split in splits}


def spaces_table(folder: str | Path | Store) -> StudyTable:
    """The parts of an embedding that methods score on their own, such as `Sharing · shared`, as a table.

    With selection "test" each metric has its maximum over the evaluations, else its value at the selected one.
    """
    store = open_store(folder)
    fids = {split.name: split.fid or 0.0 for split in stored_splits(store)}
    protocol, rows = _protocol(store), []
    for place in load_plan(store):
        result = store.result(place.id)
        if result is not None:
            for space, scores in _space_scores(result, store.fetch(place.id, READ)).items():
                where = (f"{place.method} · {space}", place.split, fids.get(place.split, 0.0), place.seed)
                rows.append(Row(*where, scores, about={**_about(result, protocol), "maxima": True}))
    if not rows:
        raise OodmlError(f"{store.url}: no method of the study scores parts of its embedding on their own.")
    return StudyTable(rows, known_as=known_splits(store))


def _space_scores(result: Mapping[str, Any], folder: Path) -> dict[str, dict[str, float]]:
    file = folder / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    history = [json.loads(line) for line in lines if '"watched"' in line]
    if result.get("selection") != "test":
        history = [row for row in history if row["step"] == result["selected"]["step"]]
    found: dict[str, dict[str, float]] = {}
    for row in history:
        for space, scores in row["watched"].items():
            best = found.setdefault(space, {})
            best.update({name: max(value, best.get(name, value)) for name, value in scores.items()})
    return found


def smallest_size(folders: list[Path]) -> tuple[int, int]:
    """(classes, images a class) that the test set of every run can be reduced to, from the embeddings they keep."""
    sizes = [np.unique(load_file(folder / EMBEDDINGS)["labels"], return_counts=True)[1] for folder in folders]
    return min(map(len, sizes), default=0), max(2, min((int(each.min()) for each in sizes), default=0))


def _trained_rows(
    done: list[Place], results: dict[str, dict[str, Any]], fids: dict[str, float], store: Store
) -> list[Row]:
    folders = {place.id: store.fetch(place.id, READ) for place in done}
    match = saved_match(store) or smallest_size([folders[place.id] for place in done])
    protocol, rows = _protocol(store), []
    for place in done:
        result = results[place.id]
        scores = {**final_scores(result), METRIC: _matched(place.id, folders[place.id], match, store)}
        row = Row(
            place.method,
            place.split,
            fids.get(place.split, 0.0),
            place.seed,
            scores,
            result["untrained"],
            seconds=result["seconds"],
            path=folders[place.id],
            structure=result.get("structure", {}),
            about=_about(result, protocol),
        )
        rows.append(row)
    return rows


def _about(result: Mapping[str, Any], protocol: str | None) -> dict[str, Any]:
    config = result.get("config", {})
    spec = config.get("method")
    method = spec["name"] if isinstance(spec, dict) else spec
    return {
        "backbone": config.get("backbone"),
        "embedding_dim": config.get("embedding_dim"),
        "protocol": protocol,
        "selection": result.get("selection"),
        "maxima": "maxima" in result,
        "stale": staleness(result),
        "epochs_between": _epochs_between(result, config),
        "discriminative": method == "plain" or method in list_losses(),
    }


def _protocol(store: Store) -> str | None:
    """The name of the protocol that a study asks for, "none" without; None where its settings are not at hand."""
    settings = _settings(store)
    asked = (settings.get("run") or {}).get("protocol")
    return (asked["name"] if isinstance(asked, dict) else asked or "none") if settings else None


def _settings(store: Store) -> dict[str, Any]:
    """The settings of the study; empty where they are not at hand."""
    return {} if store.read(SETTINGS) is None else load_settings(store)


def _epochs_between(result: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Epochs from one evaluation to the next."""
    every = config.get("eval_every")
    if config.get("steps") is None:
        return every or 1
    return (every or config["steps"] / EVALUATIONS) / result.get("steps_per_epoch", math.inf)


def _matched(run_id: str, folder: Path, match: tuple[int, int], store: Store) -> float:
    """Computed once for a size, and kept beside the run."""
    name = store.run_file(run_id, MATCHED)
    held = store.read_json(name)
    if held is None or held["match"] != list(match):
        held = {"match": list(match), METRIC: matched_recall(folder, match)[METRIC]}
        with contextlib.suppress(OodmlError):  # a study that may only be read is read all the same
            store.write_json(name, held)
    return held[METRIC]
