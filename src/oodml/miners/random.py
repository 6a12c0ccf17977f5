"""Random mining (Hu et al., 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import TripletMiner, Triplets
from oodml.miners._distances import positives_and_negatives
from oodml.miners._sampling import choose_partners


@register_miner("random", paper="Hu et al. 2014")
class Random(TripletMiner):
    """One triplet an anchor: positive and negative drawn uniformly."""

    uses_distances = False

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        positives, negatives = positives_and_negatives(labels, len(distances))
        partners = choose_partners(positives, negatives, self.generator)
        return Triplets(torch.arange(len(distances), device=labels.device), *partners)
