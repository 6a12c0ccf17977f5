"""When and how the state of a run is saved and taken up again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._files import atomic_file
from oodml.config import RunConfig, write_settings
from oodml.training.checkpoint import Writer, load_checkpoint, save_checkpoint, to_cpu
from oodml.training.folder import other_settings
from oodml.training.job import Job
from oodml.training.progress import Keeper, Progress
from oodml.training.signals import StopRequest


class Saver:
    """Saves a run into its folder from the main process, in a thread, and answers whether it should stop."""

    def __init__(self, job: Job, settings: RunConfig, run_hash: str, resumed_at: int, began: float) -> None:
        self.path, self.settings, self.run_hash = job.out / "checkpoint.pt", settings, run_hash
        self.processes, self.began = job.processes, began  # by `time.perf_counter`, as if there had been one start
        self._writer = Writer()
        self._saved_step: int | None = resumed_at or None
        self._settings_saved = False

    @property
    def last_good(self) -> str:
        """A sentence for the error of a run that went wrong."""
        if self._saved_step is None:
            return "No checkpoint was saved before it."
        return f"The last good checkpoint is {self.path}, after step {self._saved_step}."

    def check_weights(self, job: Job, step: int) -> None:
        """Raise where something trained is no longer finite, before it is scored or takes a good checkpoint's place."""
        trained = [*trained_state(job).values(), *job.method.state_dict().values()]
        numbers = [each for each in trained if isinstance(each, Tensor) and each.is_floating_point()]
        finite = [torch.isfinite(each).all() for each in numbers]
        if not torch.stack([each.to(self.processes.device) for each in finite]).all():
            raise OodmlError(
                f"The weights are no longer finite after step {step}, although the losses up to it were. "
                f"{self.last_good} Lower the learning rate, or use precision='fp32'."
            )

    def save(self, job: Job, progress: Progress, keeper: Keeper) -> None:
        self.check_weights(job, progress.step)
        self._saved_step = progress.step
        progress.seconds = time.perf_counter() - self.began
        if not self.processes.is_main:
            return
        state = to_cpu(run_state(job, progress, self.run_hash))
        rows = "".join(json.dumps(row) + "\n" for row in progress.history)
        jobs = keeper.write_jobs()
        if not self._settings_saved:  # with the first checkpoint: a run that fails before leaves nothing behind
            settings = self.settings.on_its_own(episodes=True)
            jobs.insert(0, lambda: write_settings(job.out / "config.yaml", settings))
            self._settings_saved = True
        jobs.append(lambda: save_checkpoint(self.path, state))
        jobs.append(lambda: _write_text(job.out / "metrics.jsonl", rows))
        jobs.append(keeper.cleaning_job())
        self._writer.submit(jobs)

    def finish(self) -> None:
        """Wait until what was saved is on disk."""
        self._writer.wait()

    def should_stop(self, stop: StopRequest) -> str:
        """The signal that asks to stop, or nothing; several processes agree on it."""
        return (stop.name or "a signal") if self.processes.any(bool(stop)) else ""


def run_state(job: Job, progress: Progress, run_hash: str) -> dict[str, Any]:
    """Everything a resume needs; generators need nothing, they are seeded anew for every batch."""
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
    """The embedder's tensors; a backbone that does not train is not repeated in every checkpoint."""
    state = job.embedder.state_dict()
    return {k: v for k, v in state.items() if job.config.train == "all" or not k.startswith("backbone.")}


def resume(job: Job, run_hash: str) -> Progress:
    """Take up the saved state, if there is one."""
    state = load_checkpoint(job.out / "checkpoint.pt")
    if state is None:
        return Progress()
    if state["run"] != run_hash:
        raise other_settings(job.out, None, job.config)
    if state["pictures"] != job.dataset.fingerprint:
        raise OodmlError(
            f"The pictures of {job.dataset.name!r} have changed since the run in {job.out} was begun. Choose another "
            "`out`, or remove the folder, to train on them from the beginning."
        )
    job.embedder.load_state_dict(state["embedder"], strict=job.config.train == "all")
    job.method.load_state_dict(state["method"])
    job.optimiser.load_state_dict(state["optimiser"])
    for optimiser, saved in zip(job.method.extra_optimisers(), state["extra_optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    job.sampler.load_state_dict(state["sampler"])
    return Progress.from_state(state["progress"])


def _write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
