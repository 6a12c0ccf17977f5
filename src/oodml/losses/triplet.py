"""Triplet loss (Schroff et al., FaceNet, CVPR 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_not_negative
from oodml._tensors import masked_mean, root, squared_distances
from oodml.losses import TupleLoss, register_loss
from oodml.losses.base import Tuples
from oodml.losses.tuples import all_triplets_mean
from oodml.miners import Miner


@register_loss("triplet", paper="Schroff et al. 2015", search={"margin": (0.05, 0.5)})
class Triplet(TupleLoss):
    """The positive nearer than the negative by a margin: mean [d(a,p) − d(a,n) + margin]₊ over the mined triplets.

    d is Euclidean on the unit sphere (revisiting-supplement eq. 2, margin 0.2). `squared`: d² instead, as in the
    authors' code. With the miner "all" the mean is over every triplet of the batch, at the cost of a sort.
    """

    needs_triplets = True

    def __init__(
        self,
        margin: float = 0.2,
        squared: bool = False,
        miner: str | dict[str, Any] | Miner = "distance",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_not_negative(margin=margin)
        self.margin = margin
        self.squared = squared

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        squares = squared_distances(embeddings, anchors)
        distances = root(squares)
        d = squares if self.squared else distances
        if self.takes_all_triplets(tuples):
            return all_triplets_mean(d, labels, self.margin)
        a, p, n, mask = self.triplets(embeddings, labels, tuples, anchors, distances)
        return masked_mean(torch.relu(d[a, p] - d[a, n] + self.margin), mask)
