"""One positive, all negatives (Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss, NeurIPS 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import PairMiner
from oodml.miners._distances import positives_and_negatives
from oodml.miners._sampling import choose_uniform


@register_miner("npair", paper="Sohn 2016")
class NPair(PairMiner):
    """One positive drawn uniformly and all negatives of every anchor, as pairs."""

    uses_distances = False

    def masks(self, labels: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        positives, negatives = positives_and_negatives(labels)
        return one_a_row(positives, self.generator), negatives


def one_a_row(mask: Tensor, generator: torch.Generator | None) -> Tensor:
    """Keep one True of each row, drawn uniformly; (b, b) -> (b, b)."""
    columns = torch.arange(mask.shape[1], device=mask.device)
    return mask & (columns == choose_uniform(mask, generator)[:, None])
