"""Every triplet of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._tensors import positives_and_negatives
from oodml.miners import register_miner
from oodml.miners.base import TripletMiner, Triplets


@register_miner("all", paper="Hermans et al. 2017")
class All(TripletMiner):
    """Every valid triplet of the batch, in the order of anchor, positive, negative.

    The number of triplets depends on the labels, so listing them synchronises the device. Most losses compute their sum
    over all triplets without this list; only `quadruplet` and `rho` need it, and it is long for large classes.
    """

    uses_distances = False

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        positives, negatives = positives_and_negatives(labels, len(distances))
        anchors, partners = positives.nonzero(as_tuple=True)
        pair, negative = negatives[anchors].nonzero(as_tuple=True)
        mask = torch.ones(len(pair), dtype=torch.bool, device=labels.device)
        return Triplets(anchors[pair], partners[pair], negative, mask)
