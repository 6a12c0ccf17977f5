"""How far a study is, and how long what is missing will take."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from oodml._progress import track
from oodml.config import RunConfig
from oodml.data import Dataset
from oodml.methods import make_method
from oodml.study.engines.execute import shared_dataset
from oodml.study.grid import PlannedRun, RunEntry
from oodml.study.store import Store
from oodml.training import distributed, train
from oodml.training.embedder import starting_backbone
from oodml.training.job import EVALUATIONS, build_job, prepare_images

State = Literal["done", "running", "failed", "waiting"]
CALIBRATION_STEPS = 8
CALIBRATION_SECONDS = 60
# Training images per second of one process, by (backbone, device); a frozen backbone ("head") trains on features.
# Measured: CPU, one thread of a shared machine, steps of `tiny` on glyphs, forward and backward passes of the others;
# GPU, one NVIDIA H200 in bf16, finished runs of 40 epochs on CARS196.
SPEEDS: Mapping[tuple[str, str], float] = {
    ("tiny", "cpu"): 870.0,
    ("tf_efficientnet_lite0", "cpu"): 15.0,
    ("resnet50", "cpu"): 4.5,
    ("resnet50", "cuda"): 6000.0,
    ("resnet50_v1", "cuda"): 6000.0,
    ("head", "cpu"): 5000.0,
}
SPEED_SOURCE = "speeds measured elsewhere, on one CPU thread or one NVIDIA H200"
FASTER_WITHOUT_GRADIENTS = 3.0  # embedding images against training on them
SECONDS_TO_START = 3.0  # of a run, whatever its length


@dataclass(frozen=True)
class RunStatus:
    """A run, its state, the last line of its failure, and how long its training took, if that is done."""

    run: RunEntry | PlannedRun
    state: State
    reason: str = ""
    seconds: float = float("nan")


@dataclass(frozen=True)
class Work:
    """What a run computes: updates, images in them, evaluations, images embedded in these."""

    updates: int
    images: int
    evaluations: int
    embedded: int


def status(runs: list[RunEntry] | list[PlannedRun], store: Store) -> list[RunStatus]:
    """The state of every run of a plan."""
    return [_state(run, store) for run in runs]


def counts(statuses: list[RunStatus]) -> dict[State, int]:
    counted = Counter(each.state for each in statuses)
    return {state: counted[state] for state in ("done", "running", "failed", "waiting")}


def _state(run: RunEntry | PlannedRun, store: Store) -> RunStatus:
    result, failure = store.result(run.id), store.failure(run.id)
    seconds = float("nan") if result is None else result["seconds"]
    if result is not None and failure is None:
        return RunStatus(run, "done", seconds=seconds)
    if store.is_claimed(run.id):
        return RunStatus(run, "running", seconds=seconds)
    if failure is not None:
        return RunStatus(run, "failed", failure.strip().splitlines()[-1], seconds)
    return RunStatus(run, "waiting")


# -- the work and the time of what is missing -------------------------------------------------------------------------


def work_of(run: PlannedRun) -> Work:
    """What a run computes, counted from its settings and the number of images of its classes."""
    settings = run.config.resolved()
    dataset = shared_dataset(settings.dataset)
    images, test = (len(dataset.indices_of(names)) for names in (run.split.train, run.split.test))
    batch, turns = settings.batch_size or 1, make_method(settings.method or "margin").batches_per_step
    steps_per_epoch = max(1, images // batch)
    updates = settings.steps or (settings.epochs or 1) * steps_per_epoch
    evaluations = _evaluations(settings)
    return Work(updates, updates * batch * turns, evaluations, (evaluations + 1) * test)


def _evaluations(settings: RunConfig) -> int:
    length = settings.steps or settings.epochs or 1
    every = settings.eval_every or (settings.steps / EVALUATIONS if settings.steps else 1)
    return max(1, round(length / every))


def total_work(runs: list[PlannedRun]) -> Work:
    """What runs compute together; those of one method and split differ only by their seed."""
    seeds = Counter((run.method, run.split.name) for run in runs)
    found = [(seeds[label], work_of(run)) for label, run in _one_per_label(runs).items()]
    return Work(*(sum(n * getattr(work, part.name) for n, work in found) for part in fields(Work)))


def _one_per_label(runs: list[PlannedRun]) -> dict[tuple[str, str], PlannedRun]:
    found: dict[tuple[str, str], PlannedRun] = {}
    for run in runs:
        found.setdefault((run.method, run.split.name), run)
    return found


def known_seconds(statuses: list[RunStatus], planned: list[PlannedRun]) -> tuple[float | None, str]:
    """Seconds of work of the missing runs, one after the other, from speeds that are known, and where these come from;
    None where no speed is known.

    A method's finished runs count first, else all finished runs of the study, else `SPEEDS`.
    """
    finished, missing = _by_method(statuses, planned)
    measured = {method: float(np.mean(seconds)) for method, seconds in finished.items()}
    average = float(np.mean(list(measured.values()))) if measured else None
    total, sources = 0.0, set[str]()
    for method, runs in missing.items():
        if (each := measured.get(method, average)) is not None:
            total, sources = total + each * len(runs), sources | {"the finished runs of this study"}
            continue
        runs_on = Counter(run.split.name for run in runs)
        for (_, split), run in _one_per_label(runs).items():
            if (seconds := _table_seconds(run)) is None:
                return None, ""
            total, sources = total + runs_on[split] * seconds, sources | {SPEED_SOURCE}
    return total, " and ".join(sorted(sources))


def _table_seconds(run: PlannedRun) -> float | None:
    settings, device = run.config.resolved(), "cuda" if torch.cuda.is_available() else "cpu"
    name = str(settings.backbone).partition(".")[0]  # without the tag of timm's hub
    speed = SPEEDS.get((name if settings.train == "all" else "head", device))
    if speed is None:
        return None
    work = work_of(run)
    return SECONDS_TO_START + work.images / speed + work.embedded / (FASTER_WITHOUT_GRADIENTS * speed)


def _by_method(
    statuses: list[RunStatus], planned: list[PlannedRun]
) -> tuple[dict[str, list[float]], dict[str, list[PlannedRun]]]:
    """(seconds of the finished runs, missing runs), by method."""
    finished: dict[str, list[float]] = {}
    missing: dict[str, list[PlannedRun]] = {}
    seconds = {each.run.id: each.seconds for each in statuses}
    for run in planned:
        if np.isnan(seconds[run.id]):
            missing.setdefault(run.method, []).append(run)
        else:
            finished.setdefault(run.method, []).append(seconds[run.id])
    return finished, missing


def measured_seconds(statuses: list[RunStatus], planned: list[PlannedRun]) -> float:
    """Seconds of work of the missing runs, one after the other; a method without a finished run is tried here.

    After a minute of trying, the others count as the known ones on average; so do students of teachers, which cannot be
    tried without them.
    """
    finished, missing = _by_method(statuses, planned)
    costs = {method: float(np.mean(seconds)) for method, seconds in finished.items()}
    has_teacher = {method: runs[0].teacher is not None for method, runs in missing.items()}
    unknown = sorted((method for method in missing if method not in costs), key=has_teacher.__getitem__)
    for method in unknown:
        if not has_teacher[method]:  # all runs use them: kept, shown by a bar of their own, and not counted
            compute_features(missing[method][0])
    began = time.monotonic()
    for method in track(unknown, "Trying methods"):
        if has_teacher[method] or (costs and time.monotonic() - began > CALIBRATION_SECONDS):
            costs[method] = float(np.mean(list(costs.values())))
        else:
            costs[method] = calibration(missing[method][0])
    return sum(costs[method] * len(runs) for method, runs in missing.items())


def compute_features(run: PlannedRun) -> None:
    """The features that a run of a frozen backbone would compute first; they are kept on disk."""
    settings = run.config.resolved()
    if settings.train == "head":
        dataset, processes = shared_dataset(settings.dataset), distributed.join(settings.device)
        images = prepare_images(settings, dataset, processes)
        build_job(settings, Path(), images, starting_backbone(settings), processes, None)


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


def try_run(config: RunConfig, dataset: Dataset, steps: int) -> dict[str, Any]:
    """The result of `steps` steps and one evaluation of the run; nothing of it stays on disk."""
    with tempfile.TemporaryDirectory(prefix="oodml-trial-") as folder:
        short = {"steps": steps, "epochs": None, "eval_every": steps, "selection": "last"}
        short |= {"out": str(Path(folder) / "run"), "quiet": True}
        return train(config.model_copy(update=short), dataset).data
