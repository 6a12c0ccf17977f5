"""Triplet loss (Schroff et al., FaceNet, CVPR 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._all_triplets import all_triplets_mean, all_triplets_of_distances
from oodml.losses._base import Tuples
from oodml.losses._distances import masked_mean, on_sphere
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner
from oodml.miners._checks import require_not_negative


@register_loss("triplet", paper="Schroff et al. 2015", default_miner="distance", search={"margin": (0.05, 0.5)})
class Triplet(TupleLoss):
    """The positive nearer than the negative by a margin: mean [d(a,p) − d(a,n) + margin]₊ over the mined triplets.

    d is Euclidean on the unit sphere (revisiting-supplement eq. 2, margin .2). `squared`: d² in its place, as the
    authors' code has it. With the miner "all" the mean is over every triplet of the batch, at the cost of a sort.
    """

    needs_triplets = True
    scale_free = True

    def __init__(self, margin: float = 0.2, squared: bool = False, miner: Miner | None = None) -> None:
        super().__init__(miner)
        require_not_negative(margin=margin)
        self.margin = margin
        self.squared = squared

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        distances = on_sphere(embeddings, anchors)
        if self.takes_all_triplets(tuples):
            if self.squared:
                return all_triplets_mean(distances.squared_matrix, labels, self.margin)
            return all_triplets_of_distances(distances, labels, self.margin)
        squared = distances.squared_matrix if self.squared else None
        near, far, mask = self.read_triplets(distances, labels, tuples, squared)
        return masked_mean(torch.relu(near - far + self.margin), mask)
