"""The runs of an audit: calibrated, sized, and stopped when the time is up."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from oodml._errors import OodmlError
from oodml._machine import cores
from oodml._progress import progress_bar
from oodml.shift import Split
from oodml.study.audit.pictures import Pictures
from oodml.study.audit.sizing import METHODS, SEEDS, Clock, Cost, Size
from oodml.study.engines.local import LocalEngine
from oodml.study.grid import PlannedRun, plan
from oodml.study.settings import StudyConfig
from oodml.study.status import try_run
from oodml.study.store import Store

CALIBRATION_STEPS = 10
UNKNOWN = Cost(2.0, 0.05)
BATCH = 112
WORTH_STARTING = 60.0  # seconds of work below which starting further processes costs more than they bring
SLOWER_SIDE_BY_SIDE = 1.25  # a run beside others, against the same alone


def study_of(pictures: Pictures, splits: list[Split], file: Path, size: Size) -> StudyConfig:
    """The grid of an audit of this size; seeds are added while time is left."""
    fewest = min(len(pictures.dataset.indices_of(split.train)) for split in splits)
    chosen = dict(list(METHODS.items())[: size.methods])
    run = {
        "backbone": pictures.backbone,
        "train": "head",
        "embedding_dim": 512,
        "steps": size.steps,
        "eval_every": size.steps,
        "batch_size": min(BATCH, max(4, fewest // 2 * 2)),
        "views": pictures.views,
        "selection": "last",  # few classes: none to spare for validation
    }
    return StudyConfig(
        name="audit", dataset=pictures.spec, splits=str(file), methods=chosen, seeds=list(range(SEEDS)), run=run
    )


def measure_costs(study: StudyConfig, split: Split, pictures: Pictures, clock: Clock, workers: int) -> list[Cost]:
    """What a run of each method costs here, from a few steps; as many methods as a tenth of the time allows to try."""
    costs: list[Cost] = []
    began = clock.spent
    with threads_of_a_run(workers):
        for run in plan(study.model_copy(update={"seeds": [0]}), [split]):
            if costs and clock.spent - began > 0.1 * clock.total:
                break
            try:
                found = try_run(run.config, pictures.dataset, CALIBRATION_STEPS)
            except OodmlError:  # its runs will fail and record why; the others go on
                costs.append(costs[-1] if costs else UNKNOWN)
                continue
            step = found["train_seconds"] / CALIBRATION_STEPS
            fixed = found["seconds"] - found["train_seconds"]
            costs.append(Cost(SLOWER_SIDE_BY_SIDE * fixed, SLOWER_SIDE_BY_SIDE * step))
    return costs


@contextlib.contextmanager
def threads_of_a_run(workers: int) -> Iterator[None]:
    """As many threads in this process as a run has among so many workers, whether it is tried or trained here.

    A head's steps are so small that threads bring nothing, and on a busy machine waiting for one another costs them
    ten times as much.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(clock: Clock, workers: int) -> int:
    """How many runs at once: in a short time those of this process alone, since others would take long to start."""
    return workers if clock.left > WORTH_STARTING else 1


def run_until(planned: list[PlannedRun], store: Store, clock: Clock, workers: int, quiet: bool = False) -> None:
    """Train what is missing, one seed of everything after the other, as long as time is left."""
    missing = [run for run in sorted(planned, key=lambda run: run.seed) if store.result(run.id) is None]
    if not missing:
        return
    engine = LocalEngine(side_by_side(clock, workers), clock.left)(missing, store)
    with progress_bar() as bar, threads_of_a_run(workers), contextlib.closing(engine):  # type: ignore[type-var]
        bar.disable = quiet
        task = bar.add_task("Training heads", total=len(planned), completed=len(planned) - len(missing))
        for run, outcome in engine:
            if clock.left <= 0:
                if outcome == "failed":
                    store.clear_failure(run.id)  # for want of time, not by itself
                break
            bar.update(task, description=f"Trained {run.method} on {run.split.name}", advance=1)
        if clock.left <= 0:
            bar.update(task, description="Time is up, ending the runs")


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """No warnings here and in the workers: every run would repeat what the notes of the audit say once."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.pop("PYTHONWARNINGS") if before is None else os.environ.update(PYTHONWARNINGS=before)


def complete_runs(planned: list[PlannedRun], store: Store) -> list[PlannedRun]:
    """The runs of every method and seed that has all its splits; the rest could not be ranked."""
    lacking = {(run.method, run.seed) for run in planned if store.result(run.id) is None}
    return [run for run in planned if (run.method, run.seed) not in lacking]


def not_run(planned: list[PlannedRun], kept: list[PlannedRun], store: Store) -> list[str]:
    """What of the plan is missing from the answer, and why, in words."""
    left_out = [run for run in planned if run not in kept]
    failed = {run.method: reason for run in left_out if (reason := store.failure(run.id))}
    told = [f"{method} failed: {reason.strip().splitlines()[-1]}" for method, reason in failed.items()]
    seeds = {method: len({run.seed for run in kept if run.method == method}) for method in _methods(planned)}
    lacking = [method for method, count in seeds.items() if count == 0 and method not in failed]
    begun = {run.method for run in left_out if store.result(run.id) is not None}
    if never := [method for method in lacking if method not in begun]:
        told.append(f"No time was left for {', '.join(never)}.")
    if partly := [method for method in lacking if method in begun]:
        told.append(f"Not finished on every split in the time given, and so not ranked: {', '.join(partly)}.")
    ranked = {method: count for method, count in seeds.items() if count}
    if len(set(ranked.values())) > 1:
        counted = ", ".join(f"{method} {count}" for method, count in ranked.items())
        told.append(
            f"Seeds that were finished: {counted}. A mean is over all that a method has; a difference in words is over "
            "those that both have, and so may be another than that of the means."
        )
    return told


def _methods(runs: Iterable[PlannedRun]) -> list[str]:
    return list(dict.fromkeys(run.method for run in runs))
