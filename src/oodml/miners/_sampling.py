"""Random choices by row, exactly uniform or exactly proportional, from one uniform number a row.

The inverse of the cumulative distribution needs b random numbers where a race of b² would, so a generator on the CPU
can serve embeddings on a GPU at no cost. Shapes are static and nothing is synchronised.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uniforms(count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """(count,) float64 numbers in [0, 1) on `device`, from `generator` wherever that lives."""
    if generator is None:
        return torch.rand(count, dtype=torch.float64, device=device)
    return _seeded_uniforms(count, device, generator)


@torch.compiler.disable  # a compiled graph cannot hold a generator; it breaks here and goes on after
def _seeded_uniforms(count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)
    return drawn.to(device, non_blocking=True)


def choose_uniform(mask: Tensor, generator: torch.Generator | None, rows: Tensor | None = None) -> Tensor:
    """One column of each row, uniform over the True ones; mask (b, c) bool -> (b,) int64.

    `rows` (t,) draws once for each row listed, repeats allowed, without copying the mask. A row without True gives a
    column that means nothing: mask it.
    """
    ranks = mask.cumsum(1)
    counts = ranks[:, -1] if rows is None else ranks[rows, -1]
    u = uniforms(len(counts), mask.device, generator)
    wanted = (u * counts).long().clamp(max=counts - 1) + 1  # the clamp: u·count may round up to count
    if rows is None:
        return torch.searchsorted(ranks, wanted[:, None])[:, 0].clamp(max=mask.shape[1] - 1)
    columns = torch.argsort(mask.logical_not().to(torch.uint8), dim=1, stable=True)  # the True columns first, in order
    return columns[rows, (wanted - 1).clamp(min=0)]


def choose_weighted(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """One column of each row with probability proportional to exp(log_weights), (b, c) -> (b,) int64.

    −inf excludes a column. A row of −inf alone gives a column that means nothing: mask it.
    """
    highest = log_weights.amax(1, keepdim=True).clamp_min(torch.finfo(log_weights.dtype).min)
    cumulative = (log_weights - highest).exp().cumsum(1, dtype=torch.float64)
    u = uniforms(len(log_weights), log_weights.device, generator)
    target = (u * cumulative[:, -1])[:, None]
    # right=True takes the first column whose cumulated weight exceeds the target, so never one of weight 0.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=log_weights.shape[1] - 1)
