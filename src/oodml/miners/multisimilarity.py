"""Pair mining of the multi-similarity loss (Wang et al., CVPR 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._checks import require_finite
from oodml.miners import register_miner
from oodml.miners.base import PairMiner


@register_miner("multisimilarity", paper="Wang et al. 2019")
class MultiSimilarity(PairMiner):
    """The pairs of an anchor that its hardest pair of the other kind makes informative.

    On cosines s = 1 − d²/2: keep the negative n where s(a,n) + ε > min_p s(a,p), and the positive p where
    s(a,p) − ε < max_n s(a,n). An anchor keeps pairs of both kinds or none. No randomness.
    """

    def __init__(self, epsilon: float = 0.1, generator: torch.Generator | None = None) -> None:
        super().__init__(generator)
        require_finite(epsilon=epsilon)
        self.epsilon = epsilon

    def select(self, distances: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        similarities = 1 - distances.square() / 2
        least_positive = torch.where(positives, similarities, torch.inf).amin(1, keepdim=True)
        most_negative = torch.where(negatives, similarities, -torch.inf).amax(1, keepdim=True)
        kept = positives & (similarities < most_negative + self.epsilon)
        return kept, negatives & (similarities > least_positive - self.epsilon)
