"""Contrastive loss (Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._distances import masked_mean, on_sphere
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner
from oodml.miners._checks import require_not_negative


@register_loss("contrastive", paper="Hadsell et al. 2006", default_miner="distance", search={"margin": (0.5, 1.4)})
class Contrastive(TupleLoss):
    """Positives together, negatives at least a margin apart: mean d(a,p) + mean [margin − d(a,n)]₊.

    d is Euclidean on the unit sphere, and the means run over the mined pairs (revisiting-supplement eq. 1, margin 1).
    """

    scale_free = True

    def __init__(self, margin: float = 1.0, miner: Miner | None = None) -> None:
        super().__init__(miner)
        require_not_negative(margin=margin)
        self.margin = margin

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        pairs = self.measured(on_sphere(embeddings, anchors), labels, tuples)
        near, far = pairs.near, pairs.far
        if pairs.of_triplets:
            return masked_mean(near + torch.relu(self.margin - far), pairs.positive_mask)
        with torch.no_grad():  # linear in the distances, with these weights: one pass over a matrix, and one back
            pull = pairs.positive_mask.to(near.dtype) / pairs.positive_mask.sum().clamp_min(1)
            active = pairs.negative_mask * (far < self.margin)
            push = active.to(near.dtype) / pairs.negative_mask.sum().clamp_min(1)
            offset = self.margin * push.sum()
        if near is far:
            return ((pull - push) * near).sum() + offset
        return (pull * near).sum() - (push * far).sum() + offset
