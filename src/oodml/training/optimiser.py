"""A step of the optimiser, without what a small network on a CPU pays for more than for the step itself."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def update(optimiser: torch.optim.Adam) -> None:
    """`optimiser.step()` of torch's fused Adam, to the bit.

    On a CPU its kernel is called directly: between the passes of a network the many lines around it are no longer in
    the processor's caches, and take longer than the kernel. Parameters without a state yet get theirs from torch.
    """
    groups = [[p for p in group["params"] if p.grad is not None] for group in optimiser.param_groups]
    if not all(p in optimiser.state and _is_plain(p) for params in groups for p in params):
        optimiser.step()
        return
    for group, params in zip(optimiser.param_groups, groups, strict=True):
        if not params:
            continue
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


def _is_plain(parameter: Tensor) -> bool:
    return parameter.is_cpu and parameter.dtype == torch.float32
