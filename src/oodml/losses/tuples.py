"""Base classes of losses that compare samples of a batch: which pairs and triplets count."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._tensors import positives_and_negatives
from oodml.losses.base import Loss, Tuples
from oodml.miners import Miner, PairMiner, Pairs, Triplets, build_miner
from oodml.miners.all import All
from oodml.miners.foreign import check_tuples


class PairLoss(Loss):
    """A loss on pairs of samples: those of its miner, those that the caller gives, or every pair of the batch.

    With `anchors=a`, `compute` looks at pairs and triplets whose anchor is one of the first a embeddings; the other
    embeddings are constants (the memory of `crossbatch`).
    """

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        raise NotImplementedError

    def pairs(
        self,
        embeddings: Tensor,
        labels: Tensor,
        tuples: Tuples | None,
        anchors: int | None = None,
        distances: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Masks (a, b) of the positive and of the negative pairs of each anchor; a pair listed twice counts once."""
        positives, negatives = self.pair_counts(embeddings, labels, tuples, anchors, distances)
        return positives > 0, negatives > 0

    def pair_counts(
        self,
        embeddings: Tensor,
        labels: Tensor,
        tuples: Tuples | None,
        anchors: int | None = None,
        distances: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """How often each pair (a, b) is a positive and a negative one: a triplet (a, p, n) is one of each."""
        if tuples is None and self.miner is None:
            return positives_and_negatives(labels, anchors)
        if tuples is None and isinstance(self.miner, PairMiner):
            return self.miner.masks(embeddings.detach(), labels, _detached(distances), anchors)
        if self.takes_all_triplets(tuples):
            positives, negatives = positives_and_negatives(labels, anchors)
            return positives * negatives.sum(1, keepdim=True), negatives * positives.sum(1, keepdim=True)
        found = self.mined(embeddings, labels, tuples, anchors, distances)
        shape = len(labels) if anchors is None else anchors, len(labels)
        if isinstance(found, Pairs):
            positives = _counts(found.a1, found.p, found.positive_mask, shape)
            return positives, _counts(found.a2, found.n, found.negative_mask, shape)
        a, p, n, mask = found
        return _counts(a, p, mask, shape), _counts(a, n, mask, shape)

    def mined(
        self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None, distances: Tensor | None
    ) -> Triplets | Pairs:
        """The caller's tuples, or those of the miner; `distances` are those between rows on the unit sphere."""
        if tuples is not None:
            return check_tuples(tuples, embeddings)
        assert self.miner is not None
        return self.miner(embeddings.detach(), labels, _detached(distances), anchors)

    def takes_all_triplets(self, tuples: Tuples | None) -> bool:
        """Whether every triplet of the batch counts, so that none need be listed."""
        return tuples is None and isinstance(self.miner, All)


class TupleLoss(PairLoss):
    """A loss on pairs or triplets of a miner. One that compares d(a, p) with d(a, n) sets `needs_triplets`."""

    needs_triplets: ClassVar[bool] = False

    def __init__(
        self,
        miner: str | dict[str, Any] | Miner,
        generator: torch.Generator | None = None,
        *,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(num_classes=num_classes, miner=build_miner(miner, generator))
        if self.needs_triplets and isinstance(self.miner, PairMiner):
            raise OodmlError(
                f"The loss {type(self).__name__} needs triplets (a, p, n), and the miner {type(self.miner).__name__} "
                "finds pairs. Use a miner of triplets, e.g. 'distance'."
            )

    def triplets(
        self,
        embeddings: Tensor,
        labels: Tensor,
        tuples: Tuples | None,
        anchors: int | None = None,
        distances: Tensor | None = None,
    ) -> Triplets:
        """The triplets (a, p, n) with their mask, (t,) each."""
        found = self.mined(embeddings, labels, tuples, anchors, distances)
        if isinstance(found, Pairs):
            raise OodmlError(
                f"The loss {type(self).__name__} needs triplets (a, p, n); its miner or tuples= gave pairs."
            )
        return found


class PairMaskLoss(TupleLoss):
    """A loss that weighs several positives and negatives of an anchor against each other: a triplet is not enough."""


def all_triplets_mean(matrix: Tensor, labels: Tensor, margin: float, of_active: bool = False) -> Tensor:
    """Mean [m_ap − m_an + margin]₊ over every triplet, or over those above 0; 0 without any; m is the `matrix` (a, b).

    The sum is linear in m, with constant weights, so no triplet is listed.
    """
    with torch.no_grad():
        weights, active, every = weights_in_triplets(matrix, labels, margin)
        terms = (active if of_active else every).clamp_min(1)
    return ((weights * matrix).sum() + active * margin) / terms


def weights_in_triplets(matrix: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """How often each entry (a, b) counts in Σ [m_ap − m_an + margin]₊, the number of terms above 0, and of all terms.

    An entry (a, p) counts as often as it has active negatives, an entry (a, n) is subtracted as often as it is an
    active negative: these are ranks among the sorted entries of the other kind.
    """
    positives, negatives = positives_and_negatives(labels, len(matrix))
    reach = matrix + margin
    sorted_negatives = torch.where(negatives, matrix, torch.inf).sort(1).values
    sorted_reach = torch.where(positives, reach, -torch.inf).sort(1).values
    added = torch.searchsorted(sorted_negatives, reach) * positives
    subtracted = (matrix.shape[1] - torch.searchsorted(sorted_reach, matrix, right=True)) * negatives
    return (added - subtracted).to(matrix.dtype), added.sum(), (positives.sum(1) * negatives.sum(1)).sum()


def _counts(rows: Tensor, columns: Tensor, valid: Tensor, shape: tuple[int, int]) -> Tensor:
    """How often each (row, column) is listed and valid, in a matrix of that shape."""
    counts = torch.zeros(shape, device=rows.device)
    return counts.view(-1).scatter_add(0, rows * shape[1] + columns, valid.to(counts.dtype)).view(shape)


def _detached(distances: Tensor | None) -> Tensor | None:
    return None if distances is None else distances.detach()
