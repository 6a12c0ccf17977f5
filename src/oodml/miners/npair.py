"""One positive, all negatives (Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss, NeurIPS 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._sampling import choose
from oodml.miners import register_miner
from oodml.miners.base import PairMiner


@register_miner("npair", paper="Sohn 2016")
class NPair(PairMiner):
    """One positive drawn uniformly and all negatives of every anchor, as pairs."""

    uses_distances = False

    def select(self, distances: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        return one_a_row(positives, self.generator), negatives


def one_a_row(mask: Tensor, generator: torch.Generator | None) -> Tensor:
    """Keep one True of each row, drawn uniformly; (a, b) -> (a, b)."""
    column, found = choose(mask, generator)
    return torch.zeros_like(mask).scatter_(1, column[:, None], found[:, None])
