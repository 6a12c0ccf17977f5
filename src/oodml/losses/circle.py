"""Circle loss: every pair is weighted by how far it is from where it should be."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from oodml.losses import register_loss
from oodml.losses._distances import masked_logsumexp, masked_mean
from oodml.losses._pairs import PairLoss
from oodml.miners._checks import require_finite, require_positive


def circle(similarities: Tensor, positives: Tensor, negatives: Tensor, margin: float, gamma: float) -> Tensor:
    """Mean over anchors with positives and negatives of softplus(logsumexp_n + logsumexp_p); all tensors are (a, r)."""
    fixed = similarities.detach()
    push = gamma * (fixed + margin).relu() * (similarities - margin)
    pull = -gamma * (1 + margin - fixed).relu() * (similarities - (1 - margin))
    both = masked_logsumexp(push, negatives) + masked_logsumexp(pull, positives)
    return masked_mean(F.softplus(both), positives.any(1) & negatives.any(1))


@register_loss("circle", paper="Sun et al. 2020", search={"margin": (0.1, 0.5), "gamma": (16.0, 256.0)})
class Circle(PairLoss):
    """Every pair is weighted by how far it is from where it should be.

    L = mean over anchors of log(1 + Σ_n e^{γ·α_n·(s_n − m)} · Σ_p e^{−γ·α_p·(s_p − 1 + m)}), s cosines,
    α_p = [1 + m − s_p]₊ and α_n = [s_n + m]₊ taken as constants; over the anchors that have both kinds of pairs.

    Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020, the form for pair-wise
    labels with the values for fine-grained retrieval: m = .4, γ = 80.

    Args:
        margin: m, the relaxation: positives aim at 1 − m, negatives at m.
        gamma: γ, the scale.
    """

    def __init__(self, *, margin: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        require_finite(margin=margin)
        require_positive(gamma=gamma)
        self.margin, self.gamma = margin, gamma

    def pair_loss(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return circle(similarities, positives, negatives, self.margin, self.gamma)
