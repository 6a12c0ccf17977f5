"""N-pair loss (Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NeurIPS 2016)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._distances import masked_logsumexp, masked_mean
from oodml.losses._norms import norm_penalty
from oodml.losses._tuples import PairMaskLoss
from oodml.miners import Miner
from oodml.miners._checks import require_not_negative
from oodml.miners._distances import diagonal, gram
from oodml.miners.npair import one_a_row


def npair_terms(products: Tensor, negatives: Tensor) -> Tensor:
    """log(1 + Σ_n e^{s_an − s_ap}) = softplus(log Σ_n e^{s_an} − s_ap) for every a and p; all (a, b)."""
    push = masked_logsumexp(products, negatives)
    return F.softplus(push[:, None] - products)


@register_loss("npair", paper="Sohn 2016", default_miner="lifted", search={"nu": (0.001, 0.02)})
class NPair(PairMaskLoss):
    """A positive against all negatives at once, by inner products of embeddings that are not normalised.

    mean over positive pairs (a,p) of log(1 + Σ_n e^{aᵀn − aᵀp}) + nu · mean ‖φ°‖² (revisiting-supplement eq. 4,
    nu .005; the printed 1/b·Σ is the same with two samples a class). `one_positive`: one positive an anchor, drawn
    uniformly; `squared_norm=False`: nu · mean ‖φ°‖; both as the authors' code has it.
    """

    normalise = False

    def __init__(
        self,
        nu: float = 0.005,
        one_positive: bool = False,
        squared_norm: bool = True,
        miner: Miner | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner)
        require_not_negative(nu=nu)
        self.nu, self.one_positive, self.squared_norm = nu, one_positive, squared_norm
        self.generator = generator

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.masks(embeddings, labels, tuples, anchors)
        if self.one_positive:
            positives = one_a_row(positives, self.generator)
        products = gram(embeddings, anchors)
        term = masked_mean(npair_terms(products, negatives), positives)
        return torch.add(term, norm_penalty(diagonal(products), self.squared_norm), alpha=self.nu)
