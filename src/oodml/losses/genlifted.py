"""Generalised lifted structure loss (Hermans et al., In Defense of the Triplet Loss, 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_finite, require_not_negative
from oodml._tensors import distances, masked_logsumexp, mean_norm
from oodml.losses import PairMaskLoss, register_loss
from oodml.losses.base import Tuples
from oodml.miners import Miner


@register_loss("genlifted", paper="Hermans et al. 2017", search={"margin": (0.5, 2.0)})
class GenLifted(PairMaskLoss):
    """All positives against all negatives of an anchor, softly.

    mean_a [log Σ_p e^{d(a,p)} + log Σ_n e^{margin − d(a,n)}]₊ + nu · mean ‖φ°‖², on embeddings that are not normalised
    (revisiting-supplement eq. 3, margin 1, nu 0.005; averaged over anchors where eq. 3 prints a sum, so that the
    gradient does not grow with the batch). An anchor without positives or without negatives contributes 0.
    `squared_norm=False`: nu · mean ‖φ°‖, as in the authors' code.
    """

    normalise = False

    def __init__(
        self,
        margin: float = 1.0,
        nu: float = 0.005,
        squared_norm: bool = True,
        miner: str | dict[str, Any] | Miner = "lifted",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_finite(margin=margin)
        require_not_negative(nu=nu)
        self.margin, self.nu, self.squared_norm = margin, nu, squared_norm

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        d = distances(embeddings, anchors)
        pull, push = masked_logsumexp(d, positives), masked_logsumexp(self.margin - d, negatives)
        return torch.relu(pull + push).mean() + self.nu * mean_norm(embeddings[:anchors], self.squared_norm)
