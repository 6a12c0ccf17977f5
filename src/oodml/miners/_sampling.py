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


def choose_uniform(mask: Tensor, generator: torch.Generator | None) -> Tensor:
    """One column of each row, uniform over the True ones; mask (b, c) bool -> (b,) int64.

    A row without True gives a column that means nothing: mask it.
    """
    return _draw(mask.cumsum(1, dtype=torch.float64), generator)


def choose_weighted(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """One column of each row with probability proportional to exp(log_weights), (b, c) -> (b,) int64.

    −inf excludes a column. A row of −inf alone gives a column that means nothing: mask it.
    """
    highest = log_weights.amax(1, keepdim=True).clamp_min(torch.finfo(log_weights.dtype).min)
    return _draw((log_weights - highest).exp().cumsum(1, dtype=torch.float64), generator)


def choose_uniform_for(rows: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
    """Like `choose_uniform`, once for each of the `rows` (t,) listed, repeats allowed: O(b² + t) memory.

    The True entries are numbered through the whole mask; those of a row have consecutive numbers.
    """
    numbers = mask.flatten().cumsum(0)
    counts = mask.sum(1)
    first = (counts.cumsum(0) - counts).index_select(0, rows)
    step = (uniforms(len(rows), mask.device, generator) * counts.index_select(0, rows)).long()
    found = torch.searchsorted(numbers, first + step, right=True)
    return found.clamp(max=mask.numel() - 1) % mask.shape[1]


def _draw(cumulative: Tensor, generator: torch.Generator | None) -> Tensor:
    # u is a multiple of 2⁻⁵³ below 1, so u·total stays below total after rounding; right=True takes the first column
    # whose cumulated weight exceeds it, which is never one of weight 0.
    u = uniforms(len(cumulative), cumulative.device, generator)
    target = (u * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=cumulative.shape[1] - 1)
