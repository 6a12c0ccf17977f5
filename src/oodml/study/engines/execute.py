"""One run of a study: trained into its folder, followed by what the study asks for, recorded where it fails."""

from __future__ import annotations

import traceback
from typing import Any, Literal

from oodml._errors import OodmlError
from oodml._progress import tell
from oodml.study.follow import TO_USE, follow, is_followed, shared_dataset
from oodml.study.plan import PlannedRun
from oodml.study.store import FAILED, Store
from oodml.training import train

Outcome = Literal["done", "failed", "elsewhere"]


def is_done(run: PlannedRun, store: Store) -> bool:
    """Whether nothing is left to do for the run, what follows it included."""
    return store.result(run.id) is not None and is_followed(run, store)


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
            where = f"{store.url}/{store.run_file(run.id, FAILED)}"
            tell("failed", f"{run.method} on {run.split.name}, seed {run.seed}: see {where}", "red")
            return "failed"
        return "done"


def _work(run: PlannedRun, store: Store, device: str | None) -> None:
    settings: dict[str, Any] = {"out": str(store.folder(run.id)), "quiet": True}
    if device is not None:
        settings["device"] = device
    if store.result(run.id) is None:
        if run.teacher is not None:
            _fetch_teacher(run.teacher, store)
        train(run.config.model_copy(update=settings), shared_dataset(run.config.dataset))
        store.publish(run.id)
    follow(run, store, device or run.config.device)


def _fetch_teacher(run_id: str, store: Store) -> None:
    """Have the teacher's files next to the folder of its student on this machine."""
    if store.result(run_id) is None:
        raise OodmlError(f"The teacher, run {run_id}, has not finished. `oodml study status` shows why; mend it first.")
    store.fetch(run_id, TO_USE)
