"""Semihard mining (Schroff et al., FaceNet, CVPR 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._checks import require_positive
from oodml._sampling import choose
from oodml._tensors import beyond_noise, positives_and_negatives
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners


@register_miner("semihard", paper="Schroff et al. 2015")
class Semihard(PartnerMiner):
    """One triplet per anchor: a random positive, and a random negative that is farther away than it.

    n uniform over {n : d(a,p) < d(a,n)} (revisiting-supplement eq. 20), or, with `margin`, over
    {n : d(a,p) < d(a,n) < d(a,p) + margin} (FaceNet; the authors' code, margin .2). An anchor that has no such
    negative draws uniformly among all of its negatives.
    """

    uniform_positives = True

    def __init__(self, margin: float | None = None, generator: torch.Generator | None = None) -> None:
        super().__init__(generator)
        if margin is not None:
            require_positive(margin=margin)
        self.margin = margin

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        positives, negatives = positives_and_negatives(labels, len(distances))
        positive, has_positive = choose(positives, self.generator)
        reach = beyond_noise(distances.gather(1, positive[:, None]))
        semihard = negatives & (distances > reach)
        if self.margin is not None:
            semihard &= distances < reach + self.margin
        candidates = torch.where(semihard.any(1, keepdim=True), semihard, negatives)
        negative, has_negative = choose(candidates, self.generator)
        return Partners(torch.stack([positive, negative]), has_positive & has_negative)
