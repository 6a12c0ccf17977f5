"""Random mining (Hu et al., 2014)."""

from __future__ import annotations

from torch import Tensor

from oodml._tensors import positives_and_negatives
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners, choose_partners


@register_miner("random", paper="Hu et al. 2014")
class Random(PartnerMiner):
    """One triplet per anchor: positive and negative drawn uniformly."""

    uses_distances = False
    uniform_positives = True

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        return choose_partners(positives, negatives, self.generator)
