"""Multi-similarity loss (Wang et al., Multi-Similarity Loss with General Pair Weighting for DML, CVPR 2019)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._checks import require_finite, require_positive
from oodml._errors import OodmlError
from oodml._tensors import inner_products, masked_logsumexp, masked_mean, root
from oodml.losses import PairMaskLoss, register_loss
from oodml.losses.base import Tuples
from oodml.miners import Miner
from oodml.miners.multisimilarity import MultiSimilarity as MultiSimilarityMiner


@register_loss(
    "multisimilarity",
    paper="Wang et al. 2019",
    search={"alpha": (1.0, 5.0), "beta": (20.0, 80.0), "lam": (0.3, 1.0)},
)
class MultiSimilarity(PairMaskLoss):
    """Pairs weighted by their own similarity and by that of the anchor's other pairs.

    mean_a [ 1/α · log(1 + Σ_p e^{−α(s(a,p) − λ)}) + 1/β · log(1 + Σ_n e^{β(s(a,n) − λ)}) ] over the pairs the miner
    keeps, s cosine (revisiting-supplement eq. 12; α 2, β 40, λ 0.5, and ε 0.1 of the miner). Other pairs are dropped,
    where eq. 11 prints a similarity of 0. The mean is over all anchors, those without pairs contributing 0;
    `qualifying_only`: over the anchors with pairs, as in the authors' code. `epsilon` sets the miner's ε.
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 40.0,
        lam: float = 0.5,
        epsilon: float | None = None,
        qualifying_only: bool = False,
        miner: str | dict[str, Any] | Miner = "multisimilarity",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        if epsilon is not None:
            if not isinstance(self.miner, MultiSimilarityMiner):
                raise OodmlError("epsilon belongs to the miner 'multisimilarity'; leave it out with another miner.")
            if self.miner.epsilon not in (epsilon, MultiSimilarityMiner().epsilon):
                raise OodmlError(f"{epsilon=} and the miner's epsilon={self.miner.epsilon} differ: give one of them.")
            self.miner = MultiSimilarityMiner(epsilon)
        require_positive(alpha=alpha, beta=beta)
        require_finite(lam=lam)
        self.alpha, self.beta, self.lam = alpha, beta, lam
        self.qualifying_only = qualifying_only

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        s = inner_products(embeddings, anchors)
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors, root(2 - 2 * s.detach()))
        pull = F.softplus(masked_logsumexp(-self.alpha * (s - self.lam), positives)) / self.alpha
        push = F.softplus(masked_logsumexp(self.beta * (s - self.lam), negatives)) / self.beta
        if not self.qualifying_only:
            return (pull + push).mean()
        return masked_mean(pull + push, positives.any(1) & negatives.any(1))
