"""One run of a study, and what follows it: trained into its folder, recorded where it fails."""

from __future__ import annotations

import json
import traceback
from functools import lru_cache
from typing import Any, Literal

from oodml._progress import console
from oodml.data import Dataset, load_dataset
from oodml.study.config import PlannedRun
from oodml.study.store import TRANSFER, Store
from oodml.training import evaluate_run, train

Outcome = Literal["done", "failed", "elsewhere"]


def is_done(run: PlannedRun, store: Store) -> bool:
    """Whether nothing is left to do for the run, what follows it included."""
    return store.result(run.id) is not None and not _missing_transfers(run, store)


def execute(run: PlannedRun, store: Store, device: str | None = None) -> Outcome:
    """Do what is missing of a run. A failure is recorded, not raised; a run somebody else works on is left to them."""
    with store.claim(run.id) as ours:
        if not ours:
            return "elsewhere"
        if is_done(run, store):
            return "done"
        store.clear_failure(run.id)
        try:
            _work(run, store, device)
        except Exception:
            store.record_failure(run.id, traceback.format_exc())
            where = f"{store.url}/runs/{run.id}"
            console.print(f"[red]failed[/] {run.method} on {run.split.name}, seed {run.seed}: see {where}")
            return "failed"
        return "done"


def _work(run: PlannedRun, store: Store, device: str | None) -> None:
    settings: dict[str, Any] = {"out": str(store.folder(run.id)), "quiet": True}
    if device is not None:
        settings["device"] = device
    if store.result(run.id) is None:
        train(run.config.model_copy(update=settings), shared_dataset(json.dumps(run.config.dataset)))
        store.publish(run.id)
    _transfer(run, store, device or "cpu")


def _missing_transfers(run: PlannedRun, store: Store) -> list[Any]:
    if not run.transfer:
        return []
    held = store.read_json(f"runs/{run.id}/{TRANSFER}") or {}
    return [spec for spec in run.transfer if _set_name(spec) not in held]


def _transfer(run: PlannedRun, store: Store, device: str) -> None:
    """Scores of the run on the default test classes of other data sets."""
    name = f"runs/{run.id}/{TRANSFER}"
    for spec in _missing_transfers(run, store):
        folder = store.fetch(run.id, ["config.yaml", "embedder.safetensors"])
        scores = evaluate_run(folder, shared_dataset(json.dumps(spec)), "default", device=device)
        store.write_json(name, {**(store.read_json(name) or {}), _set_name(spec): dict(scores)})


def _set_name(spec: str | dict[str, Any]) -> str:
    return spec if isinstance(spec, str) else spec["name"]


@lru_cache(maxsize=4)
def shared_dataset(spec: str) -> Dataset:
    """A data set by its settings as JSON: loaded once a process, however many runs use it."""
    return load_dataset(json.loads(spec))
