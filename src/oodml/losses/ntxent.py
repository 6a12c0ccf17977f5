"""NT-Xent (InfoNCE) with labels: each positive pair against all negatives of its anchor."""

from __future__ import annotations

from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._distances import masked_mean
from oodml.losses._pairs import PairLoss
from oodml.losses.npair import npair_terms
from oodml.miners._checks import require_positive


def ntxent(similarities: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Mean over positive pairs of log(1 + Σ_n e^{(s_an − s_ap)/T}); similarities and boolean masks are (a, r)."""
    return masked_mean(npair_terms(similarities / temperature, negatives), positives)


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
    Framework for Contrastive Learning", ICML 2020, here with labels instead of views. T = .07 (He et al., CVPR 2020).

    Other positives of the anchor are left out of the denominator; `supcon` puts them in. At two samples a class the
    two agree.

    Args:
        temperature: T.
    """

    def __init__(self, *, temperature: float = 0.07) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def pair_loss(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return ntxent(similarities, positives, negatives, self.temperature)
