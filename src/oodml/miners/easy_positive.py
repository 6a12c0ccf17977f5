"""Easy positive, semihard negative (Xuan et al., Improved Embeddings with Easy Positive Triplet Mining, WACV 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import PartnerMiner, Partners
from oodml.miners._distances import beyond_noise, positives_and_negatives, where_else


@register_miner("easy-positive", paper="Xuan et al. 2020")
class EasyPositive(PartnerMiner):
    """One triplet an anchor: its nearest positive, and the nearest negative that is farther away than that.

    An anchor all of whose negatives are nearer than its nearest positive has no such negative and is masked out.
    No randomness.
    """

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        reach, positive = where_else(positives, distances, torch.inf).min(1)
        semihard = negatives & (distances > beyond_noise(reach)[:, None])
        farther, negative = where_else(semihard, distances, torch.inf).min(1)
        # Without a positive nothing is farther.
        return Partners(torch.stack([positive, negative]), farther < torch.inf)
