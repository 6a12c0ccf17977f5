"""Supervised contrastive: every positive of an anchor against all other samples."""

from __future__ import annotations

from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._distances import masked_logsumexp, masked_mean
from oodml.losses._pairs import PairLoss
from oodml.miners._checks import require_positive


def supcon(similarities: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Mean over anchors with a positive of mean_p −log e^{s_ap/T} / Σ_{k≠a} e^{s_ak/T}; all tensors are (a, r)."""
    logits = similarities / temperature
    count = positives.sum(1)
    own = logits.masked_fill(~positives, 0.0).sum(1) / count.clamp_min(1)
    return masked_mean(masked_logsumexp(logits, positives | negatives) - own, count > 0)


@register_loss("supcon", paper="Khosla et al. 2020", search={"temperature": (0.02, 0.5)})
class SupCon(PairLoss):
    """Supervised contrastive: every positive of an anchor against all other samples.

    L = mean over anchors a with a positive of −1/|P_a| Σ_{p∈P_a} log e^{s_ap/T} / Σ_{k≠a} e^{s_ak/T}, s cosines

    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, eq. 2 (L_out), T = .1. Their code multiplies the
    loss by T/.07; that is a factor on the learning rate and is left out.

    Wants large batches with several samples a class; with a single class in the batch it still spreads that class.

    Args:
        temperature: T.
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def pair_loss(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return supcon(similarities, positives, negatives, self.temperature)
