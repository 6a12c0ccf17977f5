"""Batch-hard mining (Hermans et al., In Defense of the Triplet Loss, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import TripletMiner, Triplets
from oodml.miners._distances import positives_and_negatives


@register_miner("hard", paper="Hermans et al. 2017")
class Hard(TripletMiner):
    """One triplet an anchor: its farthest positive and its nearest negative. No randomness."""

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        positives, negatives = positives_and_negatives(labels, len(distances))
        return Triplets(
            torch.arange(len(distances), device=labels.device),
            distances.masked_fill(~positives, -torch.inf).argmax(1),
            distances.masked_fill(~negatives, torch.inf).argmin(1),
            positives.any(1) & negatives.any(1),
        )
