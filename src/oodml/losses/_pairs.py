"""Objectives over all pairs of anchors and references."""

from __future__ import annotations

from torch import Tensor

from oodml.losses._base import Loss, Tuples
from oodml.losses._tuples import as_pairs, checked, pair_masks
from oodml.miners._distances import positives_and_negatives


class PairLoss(Loss):
    """An objective over cosines (a, r) of anchors and references, with boolean masks (a, r) of the pairs that count.

    In a plain batch every sample is anchor and reference at once, and none is paired with itself; `crossbatch` adds
    references after those of the batch. A subclass writes `pair_loss(similarities, positives, negatives)`.
    """

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        if tuples is None:
            positives, negatives = positives_and_negatives(labels)
        else:
            positives, negatives = pair_masks(as_pairs(checked(tuples, embeddings)), len(labels))
        return self.pair_loss(embeddings @ embeddings.T, positives, negatives)

    def pair_loss(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        raise NotImplementedError
