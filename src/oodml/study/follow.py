"""What may follow a run: adaptation to a few labelled images of the test classes, and transfer to other data sets.

Both are kept beside the run (few_shot.json, transfer.json) and are no part of its identity: asked for later, they are
computed from what the run left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml.config import dataset_identity
from oodml.data import Dataset, load_dataset
from oodml.study.plan import PlannedRun, load_plan, stored_splits
from oodml.study.results import known_splits
from oodml.study.statistics import Row, StudyTable
from oodml.study.store import FEW_SHOT, TRANSFER, Store, open_store

Spec = str | dict[str, Any]  # a data set, as settings name it
TO_USE = ("config.yaml", "embedder.safetensors", "result.json")  # to use a run after training


def is_followed(run: PlannedRun, store: Store) -> bool:
    return not _missing_shots(run, store) and not _missing_transfers(run, store)


def follow(run: PlannedRun, store: Store, device: str) -> None:
    """Do what is missing after a finished run."""
    for shots in _missing_shots(run, store):
        _few_shot(run, store, shots, device)
    for spec in _missing_transfers(run, store):
        _transfer(run, store, spec, device)


def _missing_shots(run: PlannedRun, store: Store) -> list[int]:
    held = (store.read_json(store.run_file(run.id, FEW_SHOT)) or {}) if run.shots else {}
    return [shots for shots in run.shots if not _is_as_asked(held.get(str(shots)), run)]


def _asked(run: PlannedRun) -> dict[str, Any]:
    """What a study says about adaptation, kept with its result: some of it is only chosen while adapting."""
    return {"episodes": run.episodes, **run.few_shot}


def _is_as_asked(found: dict[str, Any] | None, run: PlannedRun) -> bool:
    return found is not None and found.get("about", {}).get("asked") == _asked(run)


def _few_shot(run: PlannedRun, store: Store, shots: int, device: str) -> None:
    from oodml.adaptation import few_shot

    folder = store.fetch(run.id, TO_USE)
    data = shared_dataset(run.config.dataset)
    metrics = ("recall@1", "map@1000", "map@1000:reference")
    options: dict[str, Any] = {"dataset": data, "metrics": metrics, "device": device, "quiet": True, **run.few_shot}
    found = few_shot(folder, run.split, shots, run.episodes, **options)
    found.about["asked"] = _asked(run)
    _add(store, store.run_file(run.id, FEW_SHOT), str(shots), found.to_json())


def _missing_transfers(run: PlannedRun, store: Store) -> list[Any]:
    held = (store.read_json(store.run_file(run.id, TRANSFER)) or {}) if run.transfer else {}
    return [spec for spec in run.transfer if not _is_transferred(held.get(target_name(spec, run.transfer)), spec, run)]


def _is_transferred(held: dict[str, Any] | None, spec: Spec, run: PlannedRun) -> bool:
    if held is None or held.get("of") != dataset_identity(spec):
        return False
    return all(_is_as_asked(held["few"].get(str(shots)), run) for shots in run.shots)


def _transfer(run: PlannedRun, store: Store, spec: Spec, device: str) -> None:
    """The run on the default test classes of another data set, adapted to them too where the study adapts."""
    from oodml.adaptation.cross_dataset import transfer, transfer_json

    options: dict[str, Any] = {"metrics": run.config.metrics, "device": device, "quiet": True, **run.few_shot}
    folder, data = store.fetch(run.id, TO_USE), shared_dataset(spec)
    found = transfer(folder, data, shots=run.shots, episodes=run.episodes, **options)
    for each in found["few"].values():
        each.about["asked"] = _asked(run)
    value = {"of": dataset_identity(spec), **transfer_json(found)}
    _add(store, store.run_file(run.id, TRANSFER), target_name(spec, run.transfer), value)


def _add(store: Store, name: str, key: str, value: Any) -> None:
    store.write_json(name, {**(store.read_json(name) or {}), key: value})


def target_name(spec: Spec, targets: Iterable[Spec]) -> str:
    """What a target is called among the others: by its name, with its options where others have the same name."""
    own = dataset_identity(spec)
    alike = [each for each in map(dataset_identity, targets) if each["name"] == own["name"]]
    written = {} if isinstance(spec, str) else spec
    told = ", ".join(f"{key}={value}" for key, value in written.items() if key in own.keys() - {"name"})
    return f"{own['name']} ({told})" if told and any(each != own for each in alike) else own["name"]


def shared_dataset(spec: Spec) -> Dataset:
    """A data set by its settings: loaded once a process, however many runs use it."""
    return _loaded(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=4)
def _loaded(spec: str) -> Dataset:
    return load_dataset(json.loads(spec))


def few_shot_table(folder: str | Path | Store) -> StudyTable:
    """Few-shot adaptation as a table: the method `S2SD · 5 shots · few` beside `S2SD · 5 shots · zero`."""
    store = open_store(folder)
    rows = []
    for place in load_plan(store):
        rows += _adapted_rows(place, place.split, store.read_json(store.run_file(place.id, FEW_SHOT)) or {})
    fids = {split.name: split.fid or 0.0 for split in stored_splits(store)}
    return _table(rows, store, fids, "no run was adapted to a few images: give the study `shots`", known_splits(store))


def transfer_table(folder: str | Path | Store) -> StudyTable:
    """Transfer as a table whose splits are the other data sets: `S2SD`, its backbone `S2SD · untrained`, and with a few
    labelled images of the target's classes `S2SD · 5 shots · few` beside `S2SD · 5 shots · zero`. A study of several
    splits has a column for the runs of each, `cars196 (shift-2)`: what they were trained on lies elsewhere."""
    store = open_store(folder)
    places, rows, fids = load_plan(store), [], {}
    several = len({place.split for place in places}) > 1
    for place in places:
        for target, held in (store.read_json(store.run_file(place.id, TRANSFER)) or {}).items():
            name = f"{target} ({place.split})" if several else target
            rows.append((place, place.method, name, held["scores"]))
            rows.append((place, f"{place.method} · untrained", name, held["untrained"]))
            rows += _adapted_rows(place, name, held["few"])
            fids[name] = held["fid"]
    return _table(rows, store, fids, "no run was tested on another data set: give the study `transfer`")


def _adapted_rows(place: Any, split: str, held: dict[str, Any]) -> list[tuple[Any, str, str, dict[str, float]]]:
    return [
        (
            place,
            f"{place.method} · {shots} shots · {use}",
            split,
            {name: value[0] for name, value in found[use].items()},
        )
        for shots, found in held.items()
        for use in ("zero", "few")
    ]


def _table(
    rows: list[tuple[Any, str, str, dict[str, float]]],
    store: Store,
    fids: dict[str, float],
    nothing: str,
    known_as: dict[str, frozenset[str]] | None = None,
) -> StudyTable:
    if not rows:
        raise OodmlError(f"{store.url}: {nothing}.")
    made = [Row(method, split, fids[split], place.seed, scores) for place, method, split, scores in rows]
    return StudyTable(made, known_as=known_as)
