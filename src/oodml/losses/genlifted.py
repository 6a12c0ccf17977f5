"""Generalised lifted structure loss (Hermans et al., In Defense of the Triplet Loss, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._distances import Distances, masked_logsumexp
from oodml.losses._norms import norm_penalty
from oodml.losses._tuples import PairMaskLoss
from oodml.miners import Miner
from oodml.miners._checks import require_finite, require_not_negative


@register_loss("genlifted", paper="Hermans et al. 2017", default_miner="lifted", search={"margin": (0.5, 2.0)})
class GenLifted(PairMaskLoss):
    """All positives against all negatives of an anchor, softly.

    mean_a [log Σ_p e^{d(a,p)} + log Σ_n e^{margin − d(a,n)}]₊ + nu · mean ‖φ°‖², on embeddings that are not normalised
    (revisiting-supplement eq. 3, margin 1, nu .005; averaged over anchors where eq. 3 prints a sum, so that the
    gradient does not grow with the batch). An anchor without positives or without negatives contributes 0.
    `squared_norm=False`: nu · mean ‖φ°‖, as the authors' code has it.
    """

    normalise = False

    def __init__(
        self, margin: float = 1.0, nu: float = 0.005, squared_norm: bool = True, miner: Miner | None = None
    ) -> None:
        super().__init__(miner)
        require_finite(margin=margin)
        require_not_negative(nu=nu)
        self.margin, self.nu, self.squared_norm = margin, nu, squared_norm

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.masks(embeddings, labels, tuples, anchors)
        d = Distances(embeddings, anchors).matrix
        pull, push = masked_logsumexp(d, positives), masked_logsumexp(self.margin - d, negatives)
        norms = (embeddings if anchors is None else embeddings[:anchors]).square().sum(1)
        return torch.add(torch.relu(pull + push).mean(), norm_penalty(norms, self.squared_norm), alpha=self.nu)
