"""Objectives over all pairs of anchors and references."""

from __future__ import annotations

from torch import Tensor

from oodml.losses._base import Loss, Tuples
from oodml.losses._tuples import as_pairs, pair_masks
from oodml.miners._distances import gram, positives_and_negatives
from oodml.miners._listed import checked


class PairLoss(Loss):
    """An objective over cosines (a, r) of anchors and references, with boolean masks (a, r) of the pairs that count.

    In a plain batch every sample is anchor and reference at once, and none is paired with itself; with `anchors=a`
    only the first a are anchors and the others constants (`crossbatch`).

    A subclass writes `pair_loss(similarities, positives, negatives)`.
    """

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        if tuples is None:
            positives, negatives = positives_and_negatives(labels, anchors)
        else:
            positives, negatives = pair_masks(
                as_pairs(checked(tuples, embeddings)), anchors or len(labels), len(labels)
            )
        return self.pair_loss(gram(embeddings, anchors), positives, negatives)

    def pair_loss(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        raise NotImplementedError
