"""One run of a study: trained into its folder, scored at the study's size of test set, then adapted to a few labelled
images of the test classes and transferred to other datasets where the study asks for it.

Adaptation and transfer are kept next to the run (few_shot.json, transfer.json) and are not part of its identity: asked
for later, they are computed from what the run left.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

from oodml._errors import OodmlError
from oodml._files import write_json
from oodml._progress import tell
from oodml.config import dataset_identity
from oodml.data import Dataset, load_dataset
from oodml.evaluation import MATCHED
from oodml.study.encoders import MATCHED_AT, matched_recall
from oodml.study.grid import PlannedRun
from oodml.study.store import FAILED, FEW_SHOT, RESULT, TRANSFER, Store
from oodml.training import train

Outcome = Literal["done", "failed", "elsewhere"]
DatasetSpec = str | dict[str, Any]  # a dataset as settings name it
TO_USE = ("config.yaml", "embedder.safetensors", RESULT)  # to use a run after training


def is_done(run: PlannedRun, store: Store) -> bool:
    """Whether nothing is left to do for the run, adaptation and transfer included."""
    return store.result(run.id) is not None and is_adapted(run, store)


def is_adapted(run: PlannedRun, store: Store) -> bool:
    """Whether the adaptation and the transfer that the study asks for were computed."""
    return not _missing_shots(run, store) and not _missing_transfers(run, store)


def execute(run: PlannedRun, store: Store, device: str | None = None) -> Outcome:
    """Do what is missing of a run. A failure is recorded, not raised; a run of another process is left alone."""
    with store.claim(run.id) as ours:
        if not ours:
            return "elsewhere"
        if is_done(run, store):
            return "done"
        store.clear_failure(run.id)
        try:
            if store.result(run.id) is None:
                _train(run, store, device)
            adapt(run, store, device or run.config.device)
        except Exception:
            store.record_failure(run.id, traceback.format_exc())
            where = f"{store.url}/{store.run_file(run.id, FAILED)}"
            tell("failed", f"{run.method} on {run.split.name}, seed {run.seed}: see {where}", "red")
            return "failed"
        return "done"


def _train(run: PlannedRun, store: Store, device: str | None) -> None:
    settings: dict[str, Any] = {"out": str(store.folder(run.id)), "quiet": True}
    if device is not None:
        settings["device"] = device
    if run.teacher is not None:
        _fetch_teacher(run.teacher, store)
    train(run.config.model_copy(update=settings), shared_dataset(run.config.dataset))
    if run.match is not None:
        _add_matched_recall(run, store)
    store.publish(run.id)


def _fetch_teacher(run_id: str, store: Store) -> None:
    """Have the teacher's files next to the folder of its student on this machine."""
    if store.result(run_id) is None:
        raise OodmlError(f"The teacher, run {run_id}, has not finished. Correct first what `oodml study status` shows.")
    store.fetch(run_id, TO_USE)


def _add_matched_recall(run: PlannedRun, store: Store) -> None:
    """Score the run at the study's size of test set, as part of its result."""
    folder, match = store.folder(run.id), run.match or (0, 0)
    held = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if held.get(MATCHED_AT, {}).get("match") != list(match):
        held[MATCHED_AT] = {"match": list(match), MATCHED: matched_recall(folder, match)}
        write_json(folder / RESULT, held)


# -- after training ---------------------------------------------------------------------------------------------------


def adapt(run: PlannedRun, store: Store, device: str) -> None:
    """Compute the missing adaptation and transfer of a finished run."""
    for shots in _missing_shots(run, store):
        _few_shot(run, store, shots, device)
    for spec in _missing_transfers(run, store):
        _transfer(run, store, spec, device)


def _missing_shots(run: PlannedRun, store: Store) -> list[int]:
    held = (store.read_json(store.run_file(run.id, FEW_SHOT)) or {}) if run.shots else {}
    return [shots for shots in run.shots if not _has_options(held.get(str(shots)), run)]


def _options(run: PlannedRun) -> dict[str, Any]:
    """The study's options of adaptation, kept with its result: others are only chosen while adapting."""
    return {"episodes": run.episodes, **run.few_shot}


def _has_options(found: dict[str, Any] | None, run: PlannedRun) -> bool:
    return found is not None and found.get("about", {}).get("asked") == _options(run)


def _few_shot(run: PlannedRun, store: Store, shots: int, device: str) -> None:
    from oodml.adaptation import few_shot

    folder = store.fetch(run.id, TO_USE)
    data = shared_dataset(run.config.dataset)
    metrics = ("recall@1", "map@1000", "map@1000:reference")
    options: dict[str, Any] = {"dataset": data, "metrics": metrics, "device": device, "quiet": True, **run.few_shot}
    found = few_shot(folder, run.split, shots, run.episodes, **options)
    found.about["asked"] = _options(run)
    _add(store, store.run_file(run.id, FEW_SHOT), str(shots), found.to_json())


def _missing_transfers(run: PlannedRun, store: Store) -> list[Any]:
    held = (store.read_json(store.run_file(run.id, TRANSFER)) or {}) if run.transfer else {}
    return [spec for spec in run.transfer if not _is_transferred(held.get(target_name(spec, run.transfer)), spec, run)]


def _is_transferred(held: dict[str, Any] | None, spec: DatasetSpec, run: PlannedRun) -> bool:
    if held is None or held.get("of") != dataset_identity(spec):
        return False
    return all(_has_options(held["few"].get(str(shots)), run) for shots in run.shots)


def _transfer(run: PlannedRun, store: Store, spec: DatasetSpec, device: str) -> None:
    """The run on the default test classes of another dataset, adapted to them too where the study adapts."""
    from oodml.adaptation.cross_dataset import transfer, transfer_json

    options: dict[str, Any] = {"metrics": run.config.metrics, "device": device, "quiet": True, **run.few_shot}
    folder, data = store.fetch(run.id, TO_USE), shared_dataset(spec)
    found = transfer(folder, data, shots=run.shots, episodes=run.episodes, **options)
    for each in found["few"].values():
        each.about["asked"] = _options(run)
    value = {"of": dataset_identity(spec), **transfer_json(found)}
    _add(store, store.run_file(run.id, TRANSFER), target_name(spec, run.transfer), value)


def _add(store: Store, name: str, key: str, value: Any) -> None:
    store.write_json(name, {**(store.read_json(name) or {}), key: value})


def target_name(spec: DatasetSpec, targets: Iterable[DatasetSpec]) -> str:
    """The label of a target among the others: its name, with its options where others have the same name."""
    own = dataset_identity(spec)
    alike = [each for each in map(dataset_identity, targets) if each["name"] == own["name"]]
    written = {} if isinstance(spec, str) else spec
    options = ", ".join(f"{key}={value}" for key, value in written.items() if key in own.keys() - {"name"})
    return f"{own['name']} ({options})" if options and any(each != own for each in alike) else own["name"]


def shared_dataset(spec: DatasetSpec) -> Dataset:
    """A dataset by its settings: loaded once per process for all runs that use it."""
    return _loaded(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=4)
def _loaded(spec: str) -> Dataset:
    return load_dataset(json.loads(spec))
