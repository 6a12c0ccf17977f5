"""Contrastive loss (Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_not_negative
from oodml._tensors import distances, masked_mean
from oodml.losses import TupleLoss, register_loss
from oodml.losses.base import Tuples
from oodml.miners import Miner


@register_loss("contrastive", paper="Hadsell et al. 2006", search={"margin": (0.5, 1.4)})
class Contrastive(TupleLoss):
    """Positives together, negatives at least a margin apart: mean d(a,p) + mean [margin − d(a,n)]₊.

    d is Euclidean on the unit sphere, and the means run over the mined pairs (revisiting-supplement eq. 1, margin 1).
    """

    def __init__(
        self,
        margin: float = 1.0,
        miner: str | dict[str, Any] | Miner = "distance",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_not_negative(margin=margin)
        self.margin = margin

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        d = distances(embeddings, anchors)
        positives, negatives = self.pair_counts(embeddings, labels, tuples, anchors, d)
        return masked_mean(d, positives) + masked_mean(torch.relu(self.margin - d), negatives)
