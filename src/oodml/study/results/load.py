"""Read a study from its folder alone: no data set, no planning, only what stands there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from oodml._errors import OodmlError
from oodml.study.plan import Place, load_plan, saved_match, stored_splits
from oodml.study.results.matched import METRIC, matched_recall
from oodml.study.results.scored import scored_rows
from oodml.study.statistics import Row, StudyTable
from oodml.study.store import EMBEDDINGS, FEW_SHOT, RESULT, TRANSFER, Store, open_store

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

    Beside the papers' recall every row has `recall@1:matched`: all test sets reduced to the smallest one. The table's
    `missing` are the runs of the plan that have not finished.
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
    return StudyTable(rows, {place.id: place.method for place in places if place.id not in results})


def smallest_size(folders: list[Path]) -> tuple[int, int]:
    """(classes, images a class) that the test set of every run can be reduced to, from the embeddings they keep."""
    sizes = [np.unique(load_file(folder / EMBEDDINGS)["labels"], return_counts=True)[1] for folder in folders]
    return min(map(len, sizes), default=0), max(2, min((int(each.min()) for each in sizes), default=0))


def _trained_rows(
    done: list[Place], results: dict[str, dict[str, Any]], fids: dict[str, float], store: Store
) -> list[Row]:
    folders = {place.id: store.fetch(place.id, READ) for place in done}
    match = saved_match(store) or smallest_size([folders[place.id] for place in done])
    rows = []
    for place in done:
        result = results[place.id]
        scores = {**result["selected"]["scores"], METRIC: _matched(place.id, folders[place.id], match, store)}
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
        )
        rows.append(row)
    return rows


def _matched(run_id: str, folder: Path, match: tuple[int, int], store: Store) -> float:
    """Computed once for a size, and kept beside the run."""
    name = store.run_file(run_id, MATCHED)
    held = store.read_json(name)
    if held is None or held["match"] != list(match):
        held = {"match": list(match), METRIC: matched_recall(folder, match)[METRIC]}
        with contextlib.suppress(OodmlError):  # a study that may only be read is read all the same
            store.write_json(name, held)
    return held[METRIC]
