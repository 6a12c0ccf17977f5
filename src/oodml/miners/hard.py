"""Batch-hard mining (Hermans et al., In Defense of the Triplet Loss, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._tensors import positives_and_negatives
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners


@register_miner("hard", paper="Hermans et al. 2017")
class Hard(PartnerMiner):
    """One triplet per anchor: its farthest positive and its nearest negative. No randomness."""

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        farthest, positive = torch.where(positives, distances, -torch.inf).max(1)
        nearest, negative = torch.where(negatives, distances, torch.inf).min(1)
        return Partners(torch.stack([positive, negative]), nearest - farthest < torch.inf)  # both are finite
