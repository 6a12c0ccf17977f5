"""NT-Xent (InfoNCE) with labels: each positive pair against all negatives of its anchor."""

from __future__ import annotations

from torch import Tensor

from oodml._checks import require_positive
from oodml._tensors import inner_products, masked_mean
from oodml.losses import PairLoss, register_loss
from oodml.losses.base import Tuples
from oodml.losses.npair import npair_terms


@register_loss(
    "ntxent",
    aliases=("infonce",),
    paper="van den Oord et al. 2018; Chen et al. 2020",
    search={"temperature": (0.02, 0.5)},
)
class NTXent(PairLoss):
    """Normalised temperature-scaled cross-entropy: each positive pair against all negatives of its anchor.

    L = mean over positive pairs (a, p) of −log e^{s_ap/T} / (e^{s_ap/T} + Σ_n e^{s_an/T}), s cosines

    van den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018; Chen et al., "A Simple
    Framework for Contrastive Learning", ICML 2020, here with labels instead of views. T = 0.07 (He et al., CVPR 2020).

    Other positives of the anchor are left out of the denominator; `supcon` includes them. With two samples per class
    the two are equal.

    Args:
        temperature: T.
    """

    def __init__(self, *, temperature: float = 0.07) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        s = inner_products(embeddings, anchors)
        return masked_mean(npair_terms(s / self.temperature, negatives), positives)
