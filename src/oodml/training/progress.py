"""How far a run is, what it has measured, and which evaluations are worth keeping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from oodml._files import atomic_file
from oodml.training.checkpoint import to_cpu

SELECTED, BEST_ON_TEST = "selected", "best_on_test"


@dataclass
class Kept:
    """The best evaluation by one number, with its tensors in a file of its own."""

    step: int
    epoch: float
    value: float
    file: str


@dataclass
class Progress:
    """The state of a run beside its weights; plain data, so it goes into the checkpoint as it is."""

    step: int = 0
    seconds: float = 0.0  # since the run was begun, over all its starts
    train_seconds: float = 0.0
    loss_sum: float = 0.0  # of the steps since the last evaluation
    loss_count: int = 0
    last_loss: float = math.nan  # mean of the last log line
    rates: list[float] = field(default_factory=list)  # images a second, one a log line
    history: list[dict[str, Any]] = field(default_factory=list)
    untrained: dict[str, float] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)

    def note(self, losses: list[float], images: int, seconds: float) -> None:
        """Take in what a log line read. Losses add up one by one, so where the lines fall does not change the sum."""
        for loss in losses:
            self.loss_sum += loss
        self.loss_count += len(losses)
        self.last_loss = sum(losses) / len(losses)
        self.train_seconds += seconds
        self.rates.append(images / seconds)

    def take_loss(self) -> float:
        """The mean loss since the last evaluation."""
        mean = self.loss_sum / self.loss_count
        self.loss_sum, self.loss_count = 0.0, 0
        return mean

    def maxima(self) -> dict[str, dict[str, float]]:
        """For each metric of the test classes its largest value, and the first step and epoch that have it."""
        found: dict[str, dict[str, float]] = {}
        for row in self.history:
            for name, value in row["test"].items():
                if name not in found or value > found[name]["value"]:
                    found[name] = {"value": value, "step": row["step"], "epoch": row["epoch"]}
        return found

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        kept = {name: Kept(**each) for name, each in state["kept"].items()}
        return cls(**{**state, "kept": kept})


class Keeper:
    """Keeps the tensors of the best evaluations: in memory until the next checkpoint, then in `kept/`.

    A file carries its step in its name and is written before the checkpoint that mentions it; older ones go after
    it. So whatever moment a run is killed, its checkpoint and the files it mentions belong together.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self._pending: dict[str, dict[str, Tensor]] = {}

    def offer(self, name: str, value: float, step: int, epoch: float, tensors: Callable[[], dict[str, Tensor]]) -> None:
        """Keep these tensors under `name` if `value` is better than what is kept there."""
        best = self.progress.kept.get(name)
        if best is None or value > best.value:
            self.progress.kept[name] = Kept(step, epoch, value, f"{name}-{step:07d}.safetensors")
            self._pending[name] = to_cpu(tensors())

    def tensors(self, name: str) -> dict[str, Tensor]:
        if name in self._pending:
            return self._pending[name]
        return load_file(self.folder / self.progress.kept[name].file)

    def write_jobs(self) -> list[Callable[[], None]]:
        """What must be on disk before a checkpoint is."""
        pending, self._pending = self._pending, {}
        return [partial(_write, self.folder / self.progress.kept[name].file, each) for name, each in pending.items()]

    def cleaning_job(self) -> Callable[[], None]:
        """Removes what the checkpoint just written no longer mentions."""
        wanted = {kept.file for kept in self.progress.kept.values()}

        def clean() -> None:
            for path in self.folder.glob("*.safetensors"):
                if path.name not in wanted:
                    path.unlink(missing_ok=True)

        return clean


class Stopwatch:
    """Seconds spent training, evaluations left out."""

    def __init__(self) -> None:
        self.since = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self.since = now - self.since, now
        return seconds


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_file(path) as temporary:
        save_file({key: value.contiguous() for key, value in tensors.items()}, temporary)
