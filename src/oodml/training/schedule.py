"""Learning rates over a run, as a factor of each parameter group's own rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from oodml.config import check_schedule
from oodml.models.embedder import BACKBONE


class Schedule(NamedTuple):
    """`factor(step)` for every group; the backbone's is multiplied by `rise(step)`."""

    factor: Callable[[int], float]
    rise: Callable[[int], float] = lambda step: 1.0


def make_schedule(
    spec: str | Mapping[str, Any], total_steps: int, steps_per_epoch: int, frozen_epochs: float = 0.0
) -> Schedule:
    """ "constant", "cosine" (to zero), or {"name": "step", "epochs": [40, 60], "factor": 0.3}.

    {"name": "cosine", "rise": 1.0}: the rate of the backbone rises linearly over one epoch, after the `frozen_epochs`
    in which it is not trained.
    """
    options = check_schedule(spec)
    name = options["name"]
    if name == "constant":
        return Schedule(lambda step: 1.0)
    if name == "step":
        milestones = [epoch * steps_per_epoch for epoch in options["epochs"]]
        return Schedule(lambda step: options.get("factor", 0.3) ** sum(step >= milestone for milestone in milestones))
    start, length = frozen_epochs * steps_per_epoch, options.get("rise", 0) * steps_per_epoch
    return Schedule(
        lambda step: 0.5 * (1 + math.cos(math.pi * step / total_steps)),
        lambda step: min(1.0, max(0.0, (step + 1 - start) / length)) if length else 1.0,
    )


def set_learning_rates(optimiser: torch.optim.Optimizer, schedule: Schedule, step: int) -> None:
    """Every group's rate as a factor of the one it started with."""
    factor = schedule.factor(step)
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * factor * (schedule.rise(step) if group.get("part") == BACKBONE else 1.0)
