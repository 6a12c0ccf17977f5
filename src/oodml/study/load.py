"""Read a study from its folder alone: no dataset, no planning, nothing written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from oodml._errors import OodmlError
from oodml.evaluation import MATCHED
from oodml.losses import list_losses
from oodml.shift import Split, names_by_content, official_at_hand
from oodml.study.encoders import MATCHED_AT, matched_recall, scored_rows
from oodml.study.grid import SETTINGS, RunEntry, load_plan, load_settings, saved_match
from oodml.study.migration import staleness
from oodml.study.splits import stored_splits
from oodml.study.store import EMBEDDINGS, FEW_SHOT, RESULT, TRANSFER, Store, open_store
from oodml.study.table import Row, StudyTable, with_untrained
from oodml.training.job import EVALUATIONS
from oodml.training.result import final_scores

OLD_MATCHED = "matched.json"  # where versions before result.json kept recall at one size of test set
# What readers of a row's folder need.
READ = (EMBEDDINGS, RESULT, "metrics.jsonl", "config.yaml", FEW_SHOT, TRANSFER)

Adapted = tuple[str, dict[str, float]]  # what a score of few-shot adaptation is called, and the scores


def load_study(folder: str | Path | Store) -> StudyTable:
    """The finished runs of a study as a table, the untrained backbone, and the encoders that were only scored.

    The scores of a run are those of `oodml.Result.scores`, and `recall@1:matched` at the selected evaluation: all test
    sets reduced to the smallest one. The table's `missing` are the runs of the plan that have not finished; its splits
    are recognised by their classes (`known_as`).
    """
    store = open_store(folder)
    entries, splits = load_plan(store), stored_splits(store)
    results = {entry.id: result for entry in entries if (result := store.result(entry.id)) is not None}
    trained = _trained_rows([entry for entry in entries if entry.id in results], results, splits, store)
    rows = with_untrained(trained)
    untrained = {row.method for row in rows[len(trained) :]}
    scored = scored_rows(store, splits, saved_match(store), untrained)
    measured = {row.method for row in scored}  # an audit scores the untrained backbone by more metrics than its runs
    rows = [row for row in rows if row.method not in measured] + scored
    if not rows:
        failures = [reason for entry in entries if (reason := store.failure(entry.id))]
        last = failures[-1].strip().splitlines()[-1] if failures else "nothing was run"
        raise OodmlError(f"No run of the study has finished: {last}")
    missing = {entry.id: entry.method for entry in entries if entry.id not in results}
    return StudyTable(rows, missing, _names_of_splits(splits, store))


def spaces_table(folder: str | Path | Store) -> StudyTable:
    """The parts of an embedding that methods score on their own, such as `Sharing · shared`, as a table.

    With selection "test" each metric has its maximum over the evaluations, else its value at the selected one.
    """
    store = open_store(folder)
    splits = stored_splits(store)
    fids = {split.name: split.fid for split in splits}
    protocol, rows = _protocol(store), []
    for entry in load_plan(store):
        result = store.result(entry.id)
        if result is not None:
            for space, scores in _space_scores(result, store.fetch(entry.id, READ)).items():
                label = f"{entry.method} · {space}"
                about = {**_about(result, protocol), "maxima": True}
                rows.append(Row(label, entry.split, fids.get(entry.split), entry.seed, scores, about=about))
    if not rows:
        raise OodmlError(f"{store.url}: no method of the study scores parts of its embedding on their own.")
    return StudyTable(rows, known_as=_names_of_splits(splits, store))


def few_shot_table(folder: str | Path | Store) -> StudyTable:
    """Few-shot adaptation as a table: the method `S2SD · 5 shots · few` next to `S2SD · 5 shots · zero`."""
    store = open_store(folder)
    splits = stored_splits(store)
    fids = {split.name: split.fid for split in splits}
    rows = [
        Row(label, entry.split, fids.get(entry.split), entry.seed, scores)
        for entry in load_plan(store)
        for label, scores in _adapted(entry, store.read_json(store.run_file(entry.id, FEW_SHOT)) or {})
    ]
    if not rows:
        raise OodmlError(f"{store.url}: no run was adapted to a few images: give the study `shots`.")
    return StudyTable(rows, known_as=_names_of_splits(splits, store))


def transfer_table(folder: str | Path | Store) -> StudyTable:
    """Transfer as a table whose splits are the other datasets: `S2SD`, the untrained backbone, and with a few labelled
    images of the target's classes `S2SD · 5 shots · few` next to `S2SD · 5 shots · zero`. A study of several splits has
    a column for the runs of each, `cars196 (shift-2)`, because their train classes differ."""
    store = open_store(folder)
    entries, rows = load_plan(store), []
    several = len({entry.split for entry in entries}) > 1
    for entry in entries:
        for target, held in (store.read_json(store.run_file(entry.id, TRANSFER)) or {}).items():
            split = f"{target} ({entry.split})" if several else target
            about = {"backbone": ((store.result(entry.id) or {}).get("config") or {}).get("backbone")}
            place = (split, held["fid"], entry.seed)
            rows.append(Row(entry.method, *place, held["scores"], held["untrained"], about=about))
            rows += [Row(label, *place, scores) for label, scores in _adapted(entry, held["few"])]
    if not rows:
        raise OodmlError(f"{store.url}: no run was tested on another dataset: give the study `transfer`.")
    return StudyTable(with_untrained(rows))


def _adapted(entry: RunEntry, held: Mapping[str, Any]) -> Iterator[Adapted]:
    for shots, found in held.items():
        for use in ("zero", "few"):
            yield f"{entry.method} · {shots} shots · {use}", {name: value[0] for name, value in found[use].items()}


def _names_of_splits(splits: list[Split], store: Store) -> dict[str, frozenset[str]]:
    """The names that each split has because of its classes; one without a dataset is of the study's."""
    spec = _settings(store).get("dataset", "")
    dataset = spec["name"] if isinstance(spec, dict) else spec
    named = [replace(split, dataset=split.dataset or dataset) for split in splits]
    official = {name: official_at_hand(name) for name in {split.dataset for split in named}}
    return {split.name: names_by_content(split, official[split.dataset]) for split in named}


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


def _trained_rows(
    done: list[RunEntry], results: dict[str, dict[str, Any]], splits: list[Split], store: Store
) -> list[Row]:
    folders = {entry.id: store.fetch(entry.id, READ) for entry in done}
    match = saved_match(store) or _smallest_size([folders[entry.id] for entry in done])
    fids = {split.name: split.fid for split in splits}
    protocol, rows = _protocol(store), []
    for entry in done:
        result, folder = results[entry.id], folders[entry.id]
        old = store.run_file(entry.id, OLD_MATCHED)
        row = Row(
            entry.method,
            entry.split,
            fids.get(entry.split),
            entry.seed,
            {**final_scores(result), MATCHED: _matched(result, folder, (match[0], match[1]), store, old)},
            result["untrained"],
            seconds=result["seconds"],
            path=folder,
            structure=result.get("structure", {}),
            about=_about(result, protocol),
        )
        rows.append(row)
    return rows


def _smallest_size(folders: list[Path]) -> tuple[int, int]:
    """(classes, images per class) that the test set of every run can be reduced to, from the embeddings they keep."""
    sizes = [np.unique(load_file(folder / EMBEDDINGS)["labels"], return_counts=True)[1] for folder in folders]
    return min(map(len, sizes), default=0), max(2, min((int(each.min()) for each in sizes), default=0))


def _matched(result: Mapping[str, Any], folder: Path, match: tuple[int, int], store: Store, old: str) -> float:
    """`recall@1:matched` from the result; of a run of before, or of a study with another size, computed here."""
    for held in (result.get(MATCHED_AT), None if MATCHED_AT in result else store.read_json(old)):
        if held is not None and held["match"] == list(match):
            return held[MATCHED]
    return _computed_matched(folder, match)


@lru_cache(maxsize=4096)
def _computed_matched(folder: Path, match: tuple[int, int]) -> float:
    return matched_recall(folder, match)


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
    """The name of the protocol in a study's settings, "none" without one; None where the settings are missing."""
    settings = _settings(store)
    protocol = (settings.get("run") or {}).get("protocol")
    return (protocol["name"] if isinstance(protocol, dict) else protocol or "none") if settings else None


def _settings(store: Store) -> dict[str, Any]:
    """The settings of the study; empty where they are missing."""
    return {} if store.read(SETTINGS) is None else load_settings(store)


def _epochs_between(result: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Epochs from one evaluation to the next."""
    every = config.get("eval_every")
    if config.get("steps") is None:
        return every or 1
    return (every or config["steps"] / EVALUATIONS) / result.get("steps_per_epoch", math.inf)
