"""Easy positive, semihard negative (Xuan et al., Improved Embeddings with Easy Positive Triplet Mining, WACV 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import TripletMiner, Triplets
from oodml.miners._distances import positives_and_negatives


@register_miner("easy-positive", paper="Xuan et al. 2020")
class EasyPositive(TripletMiner):
    """One triplet an anchor: its nearest positive, and the nearest negative that is farther away than that.

    An anchor all of whose negatives are nearer than its nearest positive has no such negative and is masked out.
    No randomness.
    """

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        positives, negatives = positives_and_negatives(labels, len(distances))
        reach, positive = distances.masked_fill(~positives, torch.inf).min(1)
        semihard = negatives & (distances > reach[:, None])
        return Triplets(
            torch.arange(len(distances), device=labels.device),
            positive,
            distances.masked_fill(~semihard, torch.inf).argmin(1),
            positives.any(1) & semihard.any(1),
        )
