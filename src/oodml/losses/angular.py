"""Angular loss (Wang et al., Deep Metric Learning with Angular Loss, ICCV 2017)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._checks import require_not_negative, require_positive
from oodml._errors import OodmlError
from oodml._tensors import inner_products, masked_logsumexp, masked_mean, mean_norm, unit_rows
from oodml.losses import PairMaskLoss, register_loss
from oodml.losses.base import Tuples
from oodml.losses.npair import npair_terms
from oodml.miners import Miner
from oodml.miners.npair import one_a_row

_WIDEST = 65.0  # degrees; beyond it e^{±16 tan²α} leaves the range of float32


def angular_terms(cosines: Tensor, negatives: Tensor, alpha: float) -> Tensor:
    """log(1 + Σ_n exp(4 tan²α (a+p)ᵀn − 2(1 + tan²α) aᵀp)) for every a and p, (a, b); alpha in degrees.

    `cosines` (b, b) are those of all samples, since p need not be an anchor; the rows of `negatives` (a, b) are.

    exp(c(aᵀn + pᵀn)) = exp(c aᵀn)·exp(c pᵀn), so the sum over n of every pair (a, p) is one product of two (b, b)
    matrices and no cubic tensor is needed.
    """
    tan2 = math.tan(math.radians(alpha)) ** 2
    factors = (4 * tan2 * cosines).exp()
    sums = (factors[: len(negatives)] * negatives) @ factors.T
    push = (sums + torch.finfo(sums.dtype).tiny).log()  # finite without negatives, and far below what a negative adds
    return F.softplus(push - 2 * (1 + tan2) * cosines[: len(negatives)])


@register_loss("angular", paper="Wang et al. 2017", search={"alpha": (30.0, 55.0), "weight": (0.5, 4.0)})
class Angular(PairMaskLoss):
    """N-pair on raw embeddings plus a bound on the angle at the negative, on unit vectors.

    L_npair + weight · mean over positive pairs of log(1 + Σ_n exp(4 tan²α (a+p)ᵀn − 2(1 + tan²α) aᵀp)), α 45°, weight 2
    (revisiting-supplement eq. 5, whose parentheses are misprinted). `nu`, `one_positive` and `squared_norm` as in
    `npair`. `clamp`: the exponents of the N-pair part are limited to ±clamp, with no gradient beyond; the authors' code
    has 50, with one positive per anchor. The sum needs no clamp to be finite.
    """

    normalise = False

    def __init__(
        self,
        alpha: float = 45.0,
        weight: float = 2.0,
        nu: float = 0.005,
        one_positive: bool = False,
        squared_norm: bool = True,
        clamp: float | None = None,
        miner: str | dict[str, Any] | Miner = "lifted",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_positive(alpha=alpha)
        if alpha > _WIDEST:
            raise OodmlError(f"alpha is an angle in degrees; expected 0 < alpha <= {_WIDEST:g}, got {alpha}.")
        require_not_negative(weight=weight, nu=nu)
        if clamp is not None:
            require_positive(clamp=clamp)
            if not one_positive:
                raise OodmlError("clamp belongs to the form with one positive per anchor: pass one_positive=True too.")
        self.alpha, self.weight, self.nu = alpha, weight, nu
        self.one_positive, self.squared_norm, self.clamp = one_positive, squared_norm, clamp
        self.generator = generator

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        if self.one_positive:
            positives = one_a_row(positives, self.generator)
        products = inner_products(embeddings, anchors)
        if self.clamp is None:
            terms = npair_terms(products, negatives)
        else:  # one positive per anchor: log(1 + Σ_n e^{clamp(aᵀn − aᵀp)}), (a, 1)
            own = (products * positives).sum(1, keepdim=True)
            exponents = (products - own).clamp(-self.clamp, self.clamp)
            terms = F.softplus(masked_logsumexp(exponents, negatives))[:, None]
        angle = angular_terms(inner_products(unit_rows(embeddings)), negatives, self.alpha)
        penalty = self.nu * mean_norm(embeddings[:anchors], self.squared_norm)
        return masked_mean(terms + self.weight * angle, positives) + penalty
