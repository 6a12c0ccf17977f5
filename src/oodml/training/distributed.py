"""Several processes (torchrun): rank and device, gathered features with their gradients, summed gradients, objects.

Only the backbone is split: each process embeds its share of the batch, the pooled features are gathered with their
gradients, and everything after them (heads, losses, miners) is computed by every process on the whole batch. So the
gradient of the backbone is the sum of the processes' gradients, and all other gradients are equal.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from oodml._machine import pick_device


@dataclass(frozen=True)
class Processes:
    """The place of this process among those of the run."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, items: np.ndarray) -> np.ndarray:
        """This process's contiguous part of `items`; the parts are equal when `count` divides the length."""
        size = -(-len(items) // self.count)
        return items[self.rank * size : (self.rank + 1) * size]

    def broadcast(self, value: Any) -> Any:
        """The main process's `value`, everywhere."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device if self.device.type == "cuda" else None)
        return box[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.count == 1:
            return flag
        votes = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(votes)
        return bool(votes.item() > 0)

    def barrier(self) -> None:
        if self.count > 1:
            dist.barrier()


def world_size() -> int:
    """The number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the process that prints; known before `join`."""
    return os.environ.get("RANK", "0") == "0"


def join(device: str) -> Processes:
    """Join the other processes of a torchrun launch and choose this one's device."""
    kind = str(pick_device(device))
    if world_size() == 1:
        return Processes(device=torch.device(kind))
    if kind == "cuda":
        kind = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(kind)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if kind.startswith("cuda") else "gloo")
        atexit.register(_leave)
    return Processes(dist.get_rank(), dist.get_world_size(), torch.device(kind))


def _leave() -> None:
    """End gloo's threads before the interpreter exits, where one that is still running would abort the process.

    NCCL is not ended: after an error it may wait for processes that have exited.
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """Concatenate the processes' rows; the gradient of a process's rows is its own part of the whole gradient.

    Every process computes the same loss from the gathered rows, so the backward pass sums nothing.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.start, ctx.length = dist.get_rank() * len(rows), len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[ctx.start : ctx.start + ctx.length]


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes (equally many in each), differentiably; without other processes, the rows."""
    return _Gather.apply(rows) if dist.is_initialized() and dist.get_world_size() > 1 else rows


def gather_uneven(rows: Tensor, total: int) -> Tensor:
    """The rows of all processes in the order of `Processes.share`, whose last parts may be shorter."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    size = -(-total // dist.get_world_size())
    padded = rows.new_zeros(size, *rows.shape[1:])
    padded[: len(rows)] = rows
    return gather(padded)[:total]


def sum_gradients(module: nn.Module | None) -> None:
    """Sum the processes' gradients of a module in one message; does nothing in a single process."""
    if module is None or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if gradients:
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        parts = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])


def average_buffers(module: nn.Module) -> None:
    """Average running statistics, which trained batch-norm computes from each process's share of the batch."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for buffer in module.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer.div_(dist.get_world_size())


def synchronise(module: nn.Module) -> None:
    """Give every process the main one's parameters and buffers."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in (*module.parameters(), *module.buffers()):  # extra state lives on the host and starts alike
            dist.broadcast(tensor.detach(), src=0)
