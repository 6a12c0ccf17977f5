"""Supervised contrastive: every positive of an anchor against all other samples."""

from __future__ import annotations

from torch import Tensor

from oodml._checks import require_positive
from oodml._tensors import inner_products, masked_logsumexp, masked_mean
from oodml.losses import PairLoss, register_loss
from oodml.losses.base import Tuples


@register_loss("supcon", paper="Khosla et al. 2020", search={"temperature": (0.02, 0.5)})
class SupCon(PairLoss):
    """Supervised contrastive: every positive of an anchor against all other samples.

    L = mean over anchors a with a positive of −1/|P_a| Σ_{p∈P_a} log e^{s_ap/T} / Σ_{k≠a} e^{s_ak/T}, s cosines

    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, eq. 2 (L_out), T = 0.1. Their code multiplies the
    loss by T/0.07; that is a factor on the learning rate and is left out.

    Use it with large batches and several samples per class; with a single class in the batch it still spreads that
    class.

    Args:
        temperature: T.
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        logits = inner_products(embeddings, anchors) / self.temperature
        count = positives.sum(1)
        own = (logits * positives).sum(1) / count.clamp_min(1)
        return masked_mean(masked_logsumexp(logits, positives | negatives) - own, count > 0)
