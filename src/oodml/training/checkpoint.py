"""Checkpoints: everything a resume needs, written whole or not at all by a thread next to the training."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._files import atomic_file
from oodml.config import RunConfig, write_settings
from oodml.training.job import Job
from oodml.training.progress import BestModels, Progress, to_cpu
from oodml.training.result import other_settings
from oodml.training.stopping import StopRequest

FORMAT = 2  # 2: the fingerprint of the images


class Checkpoints:
    """Saves a run into its folder from the main process, and answers whether it should stop."""

    def __init__(self, job: Job, settings: RunConfig, run_hash: str, resumed_at: int, began: float) -> None:
        self.job, self.settings, self.run_hash = job, settings, run_hash
        self.path = job.out / "checkpoint.pt"
        self.began = began  # by `time.perf_counter`, as if the run had been started once
        self._writer = Writer()
        self._saved_step: int | None = resumed_at or None
        self._settings_saved = False

    @property
    def last_saved(self) -> str:
        """A sentence for the error of a run that failed."""
        if self._saved_step is None:
            return "No checkpoint was saved before it."
        return f"The last good checkpoint is {self.path}, after step {self._saved_step}."

    def check_weights(self, step: int) -> None:
        """Raise if a trained number is not finite, before it is scored or replaces a good checkpoint."""
        trained = [*trained_state(self.job).values(), *self.job.method.state_dict().values()]
        numbers = [each for each in trained if isinstance(each, Tensor) and each.is_floating_point()]
        finite = [torch.isfinite(each).all() for each in numbers]
        if not torch.stack([each.to(self.job.processes.device) for each in finite]).all():
            raise OodmlError(
                f"The weights are no longer finite after step {step}, although the losses up to it were. "
                f"{self.last_saved} Lower the learning rate, or use precision='fp32'."
            )

    def save(self, progress: Progress, best: BestModels) -> None:
        self.check_weights(progress.step)
        self._saved_step = progress.step
        progress.seconds = time.perf_counter() - self.began
        if not self.job.processes.is_main:
            return
        state = to_cpu(run_state(self.job, progress, self.run_hash))
        rows = "".join(json.dumps(row) + "\n" for row in progress.history)
        jobs = best.write_jobs()
        if not self._settings_saved:  # with the first checkpoint: a run that fails before leaves nothing behind
            settings, file = self.settings.portable_dict(episodes=True), self.job.out / "config.yaml"
            jobs.insert(0, lambda: write_settings(file, settings))
            self._settings_saved = True
        jobs.append(lambda: save_checkpoint(self.path, state))
        jobs.append(lambda: _write_text(self.job.out / "metrics.jsonl", rows))
        jobs.append(best.cleaning_job())
        self._writer.submit(jobs)

    def finish(self) -> None:
        """Wait until everything saved is on disk."""
        self._writer.wait()

    def should_stop(self, stop: StopRequest) -> str:
        """The signal that asks to stop, or nothing; several processes agree on it."""
        return (stop.name or "a signal") if self.job.processes.any(bool(stop)) else ""


class Writer:
    """Writes files one after the other in a thread, so that the device does not wait for the disk.

    At most one list of jobs is pending; an error is raised at the next call.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, jobs: list[Callable[[], None]]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(jobs,), name="oodml-writer")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, jobs: list[Callable[[], None]]) -> None:
        try:
            for job in jobs:
                job()
        except BaseException as error:  # raised in the training thread
            self._error = error


def run_state(job: Job, progress: Progress, run_hash: str) -> dict[str, Any]:
    """Everything a resume needs; generators are seeded anew for every batch, so none is saved."""
    return {
        "run": run_hash,
        "pictures": job.dataset.fingerprint,
        "progress": progress.state_dict(),
        "embedder": trained_state(job),
        "method": job.method.state_dict(),
        "optimiser": job.optimiser.state_dict(),
        "extra_optimisers": [each.state_dict() for each in job.method.extra_optimisers()],
        "sampler": job.sampler.state_dict(),
    }


def trained_state(job: Job) -> dict[str, Any]:
    """The embedder's tensors; a backbone that is not trained is not repeated in every checkpoint."""
    state = job.embedder.state_dict()
    return {k: v for k, v in state.items() if job.config.train == "all" or not k.startswith("backbone.")}


def resume(job: Job, run_hash: str) -> Progress:
    """Continue from the saved state, if there is one."""
    state = load_checkpoint(job.out / "checkpoint.pt")
    if state is None:
        return Progress()
    if state["run"] != run_hash:
        raise other_settings(job.out, None, job.config)
    if state["pictures"] != job.dataset.fingerprint:
        raise OodmlError(
            f"The images of {job.dataset.name!r} have changed since the run in {job.out} was begun. Choose another "
            "`out`, or remove the folder, to train on them from the beginning."
        )
    job.embedder.load_state_dict(state["embedder"], strict=job.config.train == "all")
    job.method.load_state_dict(state["method"])
    job.optimiser.load_state_dict(state["optimiser"])
    for optimiser, saved in zip(job.method.extra_optimisers(), state["extra_optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    job.sampler.load_state_dict(state["sampler"])
    return Progress.from_state(state["progress"])


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    with atomic_file(path) as temporary:
        torch.save({"format": FORMAT, **state}, temporary)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The saved state, or None where there is none; a damaged file is an error, never silently a fresh start."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds for a damaged file
        raise OodmlError(
            f"The checkpoint {path} cannot be read ({type(error).__name__}). It may be damaged: remove it to start "
            "this run again from the beginning."
        ) from error
    if state.get("format") != FORMAT:
        raise OodmlError(
            f"The checkpoint {path} has format {state.get('format')!r}; this version of oodml reads {FORMAT}. "
            "Remove it to start again, or use the version that wrote it."
        )
    return state


def _write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
