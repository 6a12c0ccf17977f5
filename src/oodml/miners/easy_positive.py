"""Easy positive, semihard negative (Xuan et al., Improved Embeddings with Easy Positive Triplet Mining, WACV 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._tensors import beyond_noise, positives_and_negatives
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners


@register_miner("easy-positive", paper="Xuan et al. 2020")
class EasyPositive(PartnerMiner):
    """One triplet per anchor: its nearest positive, and the nearest negative that is farther away than that.

    An anchor whose negatives are all nearer than its nearest positive is masked out. No randomness.
    """

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        reach, positive = torch.where(positives, distances, torch.inf).min(1)
        semihard = negatives & (distances > beyond_noise(reach)[:, None])
        farther, negative = torch.where(semihard, distances, torch.inf).min(1)
        return Partners(torch.stack([positive, negative]), farther < torch.inf)  # without a positive it is infinite
