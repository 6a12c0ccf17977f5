"""Random mining (Hu et al., 2014)."""

from __future__ import annotations

from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import PartnerMiner, Partners
from oodml.miners._distances import positives_and_negatives
from oodml.miners._sampling import choose_partners


@register_miner("random", paper="Hu et al. 2014")
class Random(PartnerMiner):
    """One triplet an anchor: positive and negative drawn uniformly."""

    uses_distances = False
    uniform_positives = True

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        return choose_partners(positives, negatives, self.generator)
