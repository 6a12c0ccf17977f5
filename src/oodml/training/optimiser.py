"""Learning rates over a run, and the update of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oodml.config import check_schedule
from oodml.models.embedder import BACKBONE


class Schedule(NamedTuple):
    """Factors of each parameter group's own rate: `factor(step)` for all, times `rise(step)` for the backbone's."""

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
    factor = schedule.factor(step)
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * factor * (schedule.rise(step) if group.get("part") == BACKBONE else 1.0)


@torch.no_grad()
def update(optimiser: torch.optim.Adam) -> None:
    """`optimiser.step()` of torch's fused Adam, to the bit, then the gradients are removed.

    On a CPU its kernel is called directly: the Python code around it takes longer than the kernel for a small network.
    Parameters without a state yet get theirs from torch.
    """
    if all(_kernel_applies(optimiser, p) for group in optimiser.param_groups for p in group["params"]):
        for group in optimiser.param_groups:
            _update_group(optimiser, group)
    else:
        optimiser.step()
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _kernel_applies(optimiser: torch.optim.Adam, parameter: Tensor) -> bool:
    if parameter.grad is None:
        return True
    return parameter.is_cpu and parameter.dtype == torch.float32 and parameter in optimiser.state


def _update_group(optimiser: torch.optim.Adam, group: dict[str, Any]) -> None:
    params = [p for p in group["params"] if p.grad is not None]
    if not params:
        return
    states = [optimiser.state[p] for p in params]
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1)
    torch._fused_adam_(
        params,
        [p.grad for p in params],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],  # of amsgrad
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
