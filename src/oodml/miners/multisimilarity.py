"""Pair mining of the multi-similarity loss (Wang et al., CVPR 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners import register_miner
from oodml.miners._base import PairMiner
from oodml.miners._checks import require_finite
from oodml.miners._distances import where_else


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
        return self.informative(1 - distances.square() / 2, positives, negatives)

    def informative(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs to keep by their cosines (a, b), for a loss that has these at hand."""
        near = where_else(positives, similarities, torch.inf)  # what is no positive never lies below a bound
        far = where_else(negatives, similarities, -torch.inf)
        least_positive, most_negative = near.amin(1, keepdim=True), far.amax(1, keepdim=True)
        return near < most_negative + self.epsilon, far > least_positive - self.epsilon
