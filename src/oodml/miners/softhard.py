"""Softhard mining (Roth & Brattoli, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import TripletMiner, Triplets
from oodml.miners._distances import positives_and_negatives
from oodml.miners._sampling import choose_partners


@register_miner("softhard", paper="Roth & Brattoli 2019")
class Softhard(TripletMiner):
    """One triplet an anchor, drawn at random among the hard candidates of both kinds.

    p uniform over the positives farther away than the nearest negative, n uniform over the negatives nearer than the
    farthest positive (revisiting-supplement eqs. 21, 22); where there is no such candidate, uniform over all.
    """

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        positives, negatives = positives_and_negatives(labels, len(distances))
        nearest_negative = distances.masked_fill(~negatives, torch.inf).amin(1, keepdim=True)
        farthest_positive = distances.masked_fill(~positives, -torch.inf).amax(1, keepdim=True)
        hard_positives = positives & (distances > nearest_negative)
        hard_negatives = negatives & (distances < farthest_positive)
        partners = choose_partners(
            torch.where(hard_positives.any(1, keepdim=True), hard_positives, positives),
            torch.where(hard_negatives.any(1, keepdim=True), hard_negatives, negatives),
            self.generator,
        )
        return Triplets(torch.arange(len(distances), device=labels.device), *partners)
