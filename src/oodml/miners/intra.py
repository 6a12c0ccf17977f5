"""Triplets within one class (Milbich et al., DiVA: Diverse Visual Feature Aggregation for DML, ECCV 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import PartnerMiner, Partners
from oodml.miners._distances import same_class
from oodml.miners._sampling import choose, choose_partners


@register_miner("intra", paper="Milbich et al. 2020")
class Intra(PartnerMiner):
    """One triplet an anchor, all of one class: positive and negative drawn uniformly from the anchor's class.

    `distinct`: the three are different samples, so a class needs three of them in the batch. False draws with
    replacement as the authors' code does: the three may coincide, and two samples a class are enough.
    """

    uses_distances = False

    def __init__(self, distinct: bool = True, generator: torch.Generator | None = None) -> None:
        super().__init__(generator)
        self.distinct = distinct

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        mates = same_class(labels, len(distances))
        if not self.distinct:
            return Partners(choose_partners(mates, mates, self.generator).columns, mates.sum(1) > 1)
        mates.fill_diagonal_(False)
        positive, _ = choose(mates, self.generator)
        rest = mates.scatter(1, positive[:, None], False)
        negative, found = choose(rest, self.generator)
        return Partners(torch.stack([positive, negative]), found)
