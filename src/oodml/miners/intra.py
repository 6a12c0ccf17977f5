"""Triplets within one class (Milbich et al., DiVA: Diverse Visual Feature Aggregation for DML, ECCV 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._sampling import choose
from oodml._tensors import same_class
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners, choose_partners


@register_miner("intra", paper="Milbich et al. 2020")
class Intra(PartnerMiner):
    """One triplet per anchor, all of one class: positive and negative drawn uniformly from the anchor's class.

    `distinct`: the three are different samples, so a class needs three of them in the batch. False draws with
    replacement as the authors' code does: the three may coincide, and two samples per class are enough.
    """

    uses_distances = False

    def __init__(self, distinct: bool = True, generator: torch.Generator | None = None) -> None:
        super().__init__(generator)
        self.distinct = distinct

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        same = same_class(labels, len(distances))
        if not self.distinct:
            return Partners(choose_partners(same, same, self.generator).columns, same.sum(1) > 1)
        same.fill_diagonal_(False)
        positive, _ = choose(same, self.generator)
        rest = same.scatter(1, positive[:, None], False)
        negative, found = choose(rest, self.generator)
        return Partners(torch.stack([positive, negative]), found)
