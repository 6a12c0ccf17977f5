"""Multi-similarity loss (Wang et al., Multi-Similarity Loss with General Pair Weighting for DML, CVPR 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._distances import masked_logsumexp, masked_mean
from oodml.losses._tuples import PairMaskLoss
from oodml.miners import Miner
from oodml.miners._checks import require_finite, require_positive
from oodml.miners._distances import gram, positives_and_negatives, root
from oodml.miners.multisimilarity import MultiSimilarity as MultiSimilarityMiner


@register_loss(
    "multisimilarity",
    paper="Wang et al. 2019",
    default_miner="multisimilarity",
    search={"alpha": (1.0, 5.0), "beta": (20.0, 80.0), "lam": (0.3, 1.0)},
)
class MultiSimilarity(PairMaskLoss):
    """Pairs weighted by their own similarity and by that of the anchor's other pairs.

    mean_a [ 1/α · log(1 + Σ_p e^{−α(s(a,p) − λ)}) + 1/β · log(1 + Σ_n e^{β(s(a,n) − λ)}) ] over the pairs the miner
    keeps, s cosine (revisiting-supplement eq. 12; α 2, β 40, λ .5, and ε .1 of the miner). Pairs not kept are dropped,
    where eq. 11 prints a similarity of 0. The mean is over all anchors, those without pairs contributing 0;
    `qualifying_only`: over the anchors with pairs, as the authors' code has it. `epsilon` sets the miner's ε.
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 40.0,
        lam: float = 0.5,
        epsilon: float | None = None,
        qualifying_only: bool = False,
        miner: Miner | None = None,
    ) -> None:
        if epsilon is not None:
            if not isinstance(miner, MultiSimilarityMiner):
                raise OodmlError("epsilon belongs to the miner 'multisimilarity'; leave it out with another miner.")
            if miner.epsilon not in (epsilon, MultiSimilarityMiner().epsilon):
                raise OodmlError(f"{epsilon=} and the miner's epsilon={miner.epsilon} differ: give one of them.")
            miner = MultiSimilarityMiner(epsilon)
        super().__init__(miner)
        require_positive(alpha=alpha, beta=beta)
        require_finite(lam=lam)
        self.alpha, self.beta, self.lam = alpha, beta, lam
        self.qualifying_only = qualifying_only

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        similarities = gram(embeddings, anchors)
        if tuples is None and isinstance(self.miner, MultiSimilarityMiner):
            every = positives_and_negatives(labels, anchors)
            positives, negatives = self.miner.informative(similarities.detach(), *every)
        else:
            distances = root(2 - 2 * similarities.detach()) if tuples is None else None
            positives, negatives = self.masks(embeddings, labels, tuples, anchors, distances)
        centred = similarities - self.lam
        pull = F.softplus(masked_logsumexp(-self.alpha * centred, positives))
        push = F.softplus(masked_logsumexp(self.beta * centred, negatives))
        terms = torch.add(pull / self.alpha, push, alpha=1 / self.beta)
        if not self.qualifying_only:
            return terms.mean()
        return masked_mean(terms, positives.any(1) & negatives.any(1))
