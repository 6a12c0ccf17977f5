"""The state of a run next to its weights: where it is, what it measured, and its best models so far."""

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

SELECTED, LAST, BEST_ON_TEST = "selected", "last", "best_on_test"


@dataclass
class BestEvaluation:
    """The best evaluation by one number, with its tensors in a file of its own."""

    step: int
    epoch: float
    value: float
    file: str


@dataclass
class Progress:
    """Plain data, stored in the checkpoint as it is."""

    step: int = 0
    seconds: float = 0.0  # since the run was begun, over all its starts
    train_seconds: float = 0.0
    loss_sum: float = 0.0  # of the steps since the last evaluation
    loss_count: int = 0
    last_loss: float = math.nan  # mean of the last log line
    rates: list[float] = field(default_factory=list)  # images per second, one per log line
    history: list[dict[str, Any]] = field(default_factory=list)
    untrained: dict[str, float] = field(default_factory=dict)
    kept: dict[str, BestEvaluation] = field(default_factory=dict)

    def add_losses(self, losses: list[float], images: int, seconds: float) -> None:
        """Add the losses of a log line one by one, so that their sum does not depend on where log lines are."""
        for loss in losses:
            self.loss_sum += loss
        self.loss_count += len(losses)
        self.last_loss = sum(losses) / len(losses)
        self.train_seconds += seconds
        self.rates.append(images / seconds)

    def take_mean_loss(self) -> float:
        """The mean loss since the last evaluation; the count starts anew."""
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
        kept = {name: BestEvaluation(**each) for name, each in state["kept"].items()}
        return cls(**{**state, "kept": kept})


class BestModels:
    """The tensors of the best evaluations: in memory until the next checkpoint, then in `kept/`.

    The name of a file has its step. New files are written before the checkpoint that names them, old ones removed
    after it: whenever a run is killed, its checkpoint and the files it names belong together.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self._pending: dict[str, dict[str, Tensor]] = {}

    def offer(self, name: str, value: float, step: int, epoch: float, tensors: Callable[[], dict[str, Tensor]]) -> None:
        """Keep these tensors under `name` if `value` is better than that of the tensors kept there."""
        best = self.progress.kept.get(name)
        if best is None or value > best.value:
            self.progress.kept[name] = BestEvaluation(step, epoch, value, f"{name}-{step:07d}.safetensors")
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
        """Removes the files that the checkpoint just written does not name."""
        wanted = {kept.file for kept in self.progress.kept.values()}

        def clean() -> None:
            for path in self.folder.glob("*.safetensors"):
                if path.name not in wanted:
                    path.unlink(missing_ok=True)

        return clean


class Stopwatch:
    """Seconds spent training, without evaluations."""

    def __init__(self) -> None:
        self.since = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self.since = now - self.since, now
        return seconds


def to_cpu(value: Any) -> Any:
    """A copy of nested dicts, lists and tensors on the CPU, independent of what training does next."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(each) for each in value)
    return value


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_file(path) as temporary:
        save_file({key: value.contiguous() for key, value in tensors.items()}, temporary)
