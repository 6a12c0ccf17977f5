"""N-pair loss (Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NeurIPS 2016)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._checks import require_not_negative
from oodml._tensors import inner_products, masked_logsumexp, masked_mean, mean_norm
from oodml.losses import PairMaskLoss, register_loss
from oodml.losses.base import Tuples
from oodml.miners import Miner
from oodml.miners.npair import one_a_row


def npair_terms(products: Tensor, negatives: Tensor) -> Tensor:
    """log(1 + Σ_n e^{s_an − s_ap}) = softplus(log Σ_n e^{s_an} − s_ap) for every a and p; all (a, b)."""
    return F.softplus(masked_logsumexp(products, negatives)[:, None] - products)


@register_loss("npair", paper="Sohn 2016", search={"nu": (0.001, 0.02)})
class NPair(PairMaskLoss):
    """A positive against all negatives at once, by inner products of embeddings that are not normalised.

    mean over positive pairs (a,p) of log(1 + Σ_n e^{aᵀn − aᵀp}) + nu · mean ‖φ°‖² (revisiting-supplement eq. 4,
    nu 0.005; the printed 1/b·Σ is the same with two samples per class). `one_positive`: one positive per anchor, drawn
    uniformly; `squared_norm=False`: nu · mean ‖φ°‖; both as in the authors' code.
    """

    normalise = False

    def __init__(
        self,
        nu: float = 0.005,
        one_positive: bool = False,
        squared_norm: bool = True,
        miner: str | dict[str, Any] | Miner = "lifted",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_not_negative(nu=nu)
        self.nu, self.one_positive, self.squared_norm = nu, one_positive, squared_norm
        self.generator = generator

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        if self.one_positive:
            positives = one_a_row(positives, self.generator)
        terms = npair_terms(inner_products(embeddings, anchors), negatives)
        return masked_mean(terms, positives) + self.nu * mean_norm(embeddings[:anchors], self.squared_norm)
