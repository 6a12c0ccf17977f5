"""Learning rates over a run, as a factor of each parameter group's own rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from oodml.config import check_schedule


def make_schedule(spec: str | Mapping[str, Any], total_steps: int, steps_per_epoch: int) -> Callable[[int], float]:
    """`step -> factor`: "constant", "cosine" (to zero), or {"name": "step", "epochs": [40, 60], "factor": .3}."""
    options = check_schedule(spec)
    name = options["name"]
    if name == "constant":
        return lambda step: 1.0
    if name == "cosine":
        return lambda step: 0.5 * (1 + math.cos(math.pi * step / total_steps))
    milestones = [epoch * steps_per_epoch for epoch in options["epochs"]]
    return lambda step: options.get("factor", 0.3) ** sum(step >= milestone for milestone in milestones)


def set_learning_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Every group's rate as `factor` of the one it started with."""
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * factor
