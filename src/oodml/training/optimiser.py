"""A step of the optimiser, without what a small network on a CPU pays for more than for the step itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def update(optimiser: torch.optim.Adam) -> None:
    """`optimiser.step()` of torch's fused Adam, to the bit; the gradients are gone after it.

    On a CPU its kernel is called directly: between the passes of a network the many lines around it are no longer in
    the processor's caches, and take longer than the kernel. Parameters without a state yet get theirs from torch.
    """
    if all(_is_ready(optimiser, p) for group in optimiser.param_groups for p in group["params"]):
        for group in optimiser.param_groups:
            _update_group(optimiser, group)
    else:
        optimiser.step()
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


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


def _is_ready(optimiser: torch.optim.Adam, parameter: Tensor) -> bool:
    """Whether it rests, or the kernel can be called for it. The first one on a GPU says no, and nothing is gathered."""
    if parameter.grad is None:
        return True
    return parameter.is_cpu and parameter.dtype == torch.float32 and parameter in optimiser.state
