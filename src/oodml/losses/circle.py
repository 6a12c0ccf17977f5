"""Circle loss: every pair is weighted by how far it is from where it should be."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_finite, require_positive
from oodml._tensors import inner_products, masked_logsumexp, masked_mean
from oodml.losses import PairLoss, register_loss
from oodml.losses.base import Tuples


@register_loss("circle", paper="Sun et al. 2020", search={"margin": (0.1, 0.5), "gamma": (16.0, 256.0)})
class Circle(PairLoss):
    """Every pair is weighted by how far it is from where it should be.

    L = mean over anchors of log(1 + Σ_n e^{γ·α_n·(s_n − m)} · Σ_p e^{−γ·α_p·(s_p − 1 + m)}), s cosines,
    α_p = [1 + m − s_p]₊ and α_n = [s_n + m]₊ taken as constants; over the anchors that have both kinds of pairs.

    Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020, the form for pair-wise
    labels with the values for fine-grained retrieval: m = 0.4, γ = 80.

    Args:
        margin: m, the relaxation: positives aim at 1 − m, negatives at m.
        gamma: γ, the scale.
    """

    def __init__(self, *, margin: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        require_finite(margin=margin)
        require_positive(gamma=gamma)
        self.margin, self.gamma = margin, gamma

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        s = inner_products(embeddings, anchors)
        weight_p, weight_n = (1 + self.margin - s.detach()).relu(), (s.detach() + self.margin).relu()
        pull = masked_logsumexp(-self.gamma * weight_p * (s - 1 + self.margin), positives)
        push = masked_logsumexp(self.gamma * weight_n * (s - self.margin), negatives)
        return masked_mean(F.softplus(push + pull), positives.any(1) & negatives.any(1))
