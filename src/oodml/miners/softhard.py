"""Softhard mining (Roth & Brattoli, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._tensors import beyond_noise, positives_and_negatives
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners, choose_partners


@register_miner("softhard", paper="Roth & Brattoli 2019")
class Softhard(PartnerMiner):
    """One triplet per anchor, drawn at random among the hard candidates of both kinds.

    p uniform over the positives farther away than the nearest negative, n uniform over the negatives nearer than the
    farthest positive (revisiting-supplement eqs. 21, 22); where there is no such candidate, uniform over all.
    """

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        near = torch.where(positives, distances, -torch.inf)
        far = torch.where(negatives, distances, torch.inf)
        farthest_positive = near.amax(1, keepdim=True)
        nearest_negative = beyond_noise(far.amin(1, keepdim=True))
        hard = farthest_positive > nearest_negative  # then there are hard candidates of both kinds, else of neither
        return choose_partners(
            near > torch.where(hard, nearest_negative, -torch.inf),
            far < torch.where(hard, farthest_positive, torch.inf),
            self.generator,
        )
