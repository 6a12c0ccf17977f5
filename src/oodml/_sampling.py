"""Random choices by row, exactly uniform or exactly proportional, from one uniform number per row.

Inverting the cumulative distribution needs b random numbers instead of b², so a generator on the CPU can serve
embeddings on a GPU at no cost. Shapes are static and nothing is synchronised.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uniforms(count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """(count,) float64 numbers in [0, 1) on `device`, from `generator` on any device."""
    if generator is None:
        return torch.rand(count, dtype=torch.float64, device=device)
    return _seeded_uniforms(count, device, generator)


@torch.compiler.disable  # a compiled graph cannot hold a generator: it breaks here and resumes after
def _seeded_uniforms(count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)
    return drawn.to(device, non_blocking=True)


def choose(weights: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """One column of each row with probability proportional to its weight, (b, c) -> (b,) int64, and whether there is
    one, (b,) bool: a row of zeros, or of NaN, gives an arbitrary column.

    Booleans are weights too: uniform over the True ones.
    """
    return choose_at(weights, uniforms(len(weights), weights.device, generator))


def choose_at(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """`choose`, with the uniform number (b,) of each row given."""
    cumulative = weights.cumsum(1, dtype=torch.float64)
    totals = cumulative[:, -1:]
    # u is a multiple of 2⁻⁵³ below 1, so u·total stays below total after rounding; right=True takes the first column
    # whose cumulated weight exceeds it, which is never one of weight 0.
    columns = torch.searchsorted(cumulative, points[:, None] * totals, right=True).clamp_(max=weights.shape[1] - 1)
    return columns[:, 0], totals[:, 0] > 0


def choose_uniform_for(rows: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform over the True entries of a row, once for each of the `rows` (t,) listed, repeats allowed.

    O(b² + t) memory: the True entries are numbered through the whole mask; those of a row have consecutive numbers.
    """
    numbers = mask.flatten().cumsum(0)
    counts = mask.sum(1)
    first = (counts.cumsum(0) - counts).index_select(0, rows)
    step = (uniforms(len(rows), mask.device, generator) * counts.index_select(0, rows)).long()
    found = torch.searchsorted(numbers, first + step, right=True)
    return found.clamp(max=mask.numel() - 1) % mask.shape[1]
