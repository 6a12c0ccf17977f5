"""Random choices by row, exactly uniform or exactly proportional, from one uniform number a row.

The inverse of the cumulative distribution needs b random numbers where a race of b² would, so a generator on the CPU
can serve embeddings on a GPU at no cost. Shapes are static and nothing is synchronised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners._base import Partners


def uniforms(count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """(count,) float64 numbers in [0, 1) on `device`, from `generator` wherever that lives."""
    if generator is None:
        return torch.rand(count, dtype=torch.float64, device=device)
    return _seeded_uniforms(count, device, generator)


@torch.compiler.disable  # a compiled graph cannot hold a generator; it breaks here and goes on after
def _seeded_uniforms(count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)
    return drawn.to(device, non_blocking=True)


def choose(weights: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """One column of each row with probability proportional to its weight, (b, c) -> (b,) int64, and whether there is
    one, (b,) bool: a row of zeros, or of NaN, gives a column that means nothing.

    Booleans are weights too: uniform over the True ones.
    """
    return choose_at(weights, uniforms(len(weights), weights.device, generator))


def choose_at(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """`choose`, with the uniform number (b,) of each row given."""
    columns, totals = _columns_at(weights, points)
    return columns, totals > 0


def _columns_at(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """The columns chosen and the sums of the rows, (b,) each."""
    cumulative = weights.cumsum(1, dtype=torch.float64)
    totals = cumulative[:, -1:]
    # u is a multiple of 2⁻⁵³ below 1, so u·total stays below total after rounding; right=True takes the first column
    # whose cumulated weight exceeds it, which is never one of weight 0.
    columns = torch.searchsorted(cumulative, points[:, None] * totals, right=True).clamp_(max=weights.shape[1] - 1)
    return columns[:, 0], totals[:, 0]


def choose_partners(positives: Tensor, negatives: Tensor, generator: torch.Generator | None) -> Partners:
    """A positive and a negative of each row by `choose`, from weights (a, b) each, and whether there are both.

    Both are drawn as one matrix of 2a rows: half the kernels.
    """
    count, width = positives.shape
    # The float64 that they are added up in, so that no kernel converts them.
    weights = torch.empty(2 * count, width, dtype=torch.float64, device=positives.device)
    for part, given in ((weights[:count], positives), (weights[count:], negatives)):
        # Torch reads bytes faster than booleans; a compiled graph of torch 2.11 cannot tell that they are the same.
        as_bytes = given.dtype == torch.bool and not torch.compiler.is_compiling()
        part.copy_(given.view(torch.uint8) if as_bytes else given)
    columns, totals = _columns_at(weights, uniforms(len(weights), weights.device, generator))
    return Partners(columns.view(2, -1), torch.minimum(*totals.view(2, -1)) > 0)


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
