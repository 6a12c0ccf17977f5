"""How far a study is, and how long what is missing will take."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from oodml._progress import track
from oodml.methods import make_method
from oodml.study.follow import shared_dataset
from oodml.study.plan import Place, PlannedRun
from oodml.study.running.trial import lay_out, try_run
from oodml.study.store import Store

State = Literal["done", "running", "failed", "waiting"]
CALIBRATION_STEPS = 8
CALIBRATION_SECONDS = 60


@dataclass(frozen=True)
class RunStatus:
    """A run's place in the study, its state, the last line of why it failed (or what was to follow it), and how long
    its training took, if that is done."""

    place: Place | PlannedRun
    state: State
    reason: str = ""
    seconds: float = float("nan")


def status(places: list[Place] | list[PlannedRun], store: Store) -> list[RunStatus]:
    """The state of every run of a plan."""
    return [_state(place, store) for place in places]


def counts(statuses: list[RunStatus]) -> dict[State, int]:
    counted = Counter(each.state for each in statuses)
    return {state: counted[state] for state in ("done", "running", "failed", "waiting")}


def _state(place: Place | PlannedRun, store: Store) -> RunStatus:
    result, failure = store.result(place.id), store.failure(place.id)
    seconds = float("nan") if result is None else result["seconds"]
    if result is not None and failure is None:
        return RunStatus(place, "done", seconds=seconds)
    if store.is_claimed(place.id):
        return RunStatus(place, "running", seconds=seconds)
    if failure is not None:
        return RunStatus(place, "failed", failure.strip().splitlines()[-1], seconds)
    return RunStatus(place, "waiting")


def estimate_seconds(statuses: list[RunStatus], planned: list[PlannedRun], calibrate: bool = True) -> float | None:
    """Seconds of work that the missing runs are, one after the other; None where nothing tells.

    A method's finished runs tell; one that has none is tried for a few steps where `calibrate` allows it. After a
    minute of trying, the others count as what the known ones take on average; so do students of teachers, which cannot
    be tried without them.
    """
    seen: dict[str, list[float]] = {}
    todo = {each.place.id for each in statuses if np.isnan(each.seconds)}
    for each in statuses:
        if each.place.id not in todo:
            seen.setdefault(each.place.method, []).append(each.seconds)
    by_method: dict[str, list[PlannedRun]] = {}
    for run in planned:
        if run.id in todo:
            by_method.setdefault(run.method, []).append(run)
    costs = {method: float(np.mean(seconds)) for method, seconds in seen.items()}
    taught = {method: runs[0].teacher is not None for method, runs in by_method.items()}
    unknown = sorted((method for method in by_method if method not in costs), key=taught.__getitem__)
    if unknown and not calibrate:
        return None
    for method in unknown:
        if not taught[method]:  # all runs use them: kept, shown by a bar of their own, and not counted
            compute_features(by_method[method][0])
    began = time.monotonic()
    for method in track(unknown, "Trying methods"):
        if taught[method] or (costs and time.monotonic() - began > CALIBRATION_SECONDS):
            costs[method] = float(np.mean(list(costs.values())))
        else:
            costs[method] = calibration(by_method[method][0])
    return sum(costs[method] * len(runs) for method, runs in by_method.items())


def compute_features(run: PlannedRun) -> None:
    """The features that a run of a frozen backbone would compute first."""
    settings = run.config.resolved()
    if settings.train == "head":
        lay_out(settings, shared_dataset(settings.dataset))


def calibration(run: PlannedRun) -> float:
    """Seconds that a run will take, from a few steps of it.

    The steps scale with the length of the run. The rest is the scores of the untrained backbone, one evaluation and the
    final scores, of which only the evaluations are repeated.
    """
    settings = run.config.resolved()
    found = try_run(settings, shared_dataset(settings.dataset), CALIBRATION_STEPS)
    images = (settings.batch_size or 1) * make_method(settings.method or "margin").batches_per_step
    steps = settings.steps or (settings.epochs or 1) * found["steps_per_epoch"]
    fixed = max(0.0, found["seconds"] - found["train_seconds"])
    if settings.eval_every:
        evaluations = steps / settings.eval_every if settings.steps else (settings.epochs or 1) / settings.eval_every
    else:
        evaluations = 10 if settings.steps else settings.epochs or 1
    return steps * images / found["images_per_second"] + fixed * (1 + (evaluations - 1) / 3)
