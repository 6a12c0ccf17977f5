"""Objectives on mined tuples: which tuples of the batch a loss looks at."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses._base import Loss, Tuples
from oodml.losses._distances import Distances, read_columns, read_pairs
from oodml.miners._base import Miner, PairMiner, Pairs, PartnerMiner, Partners, Triplets
from oodml.miners._distances import positives_and_negatives
from oodml.miners._foreign import as_miner
from oodml.miners._listed import checked
from oodml.miners.all import All


class MeasuredPairs(NamedTuple):
    """Distances of positive and of negative pairs, the labels of their anchors, and which entries count.

    Lists (t,); or, where a pair miner chose, the whole matrix (a, b) with masks, and labels (a, 1). Where every triplet
    is wanted, the masks are numbers: in how many triplets a pair stands.
    """

    positive_labels: Tensor
    near: Tensor
    positive_mask: Tensor
    negative_labels: Tensor
    far: Tensor
    negative_mask: Tensor
    of_triplets: bool  # entry by entry, both pairs come from one triplet (a, p, n)


class TupleLoss(Loss):
    """A loss whose tuples come from a miner, or from the caller.

    With `anchors=a`, `compute` looks at tuples of the first a embeddings alone; the others are constants. A loss that
    compares d(a, p) with d(a, n) sets `needs_triplets`.
    """

    needs_triplets: ClassVar[bool] = False

    def __init__(self, miner: Miner | None, *, num_classes: int | None = None) -> None:
        if miner is None:
            raise OodmlError(f"{type(self).__name__} needs a miner; oodml.make_loss gives it its default one.")
        if self.needs_triplets and isinstance(miner, PairMiner):
            raise OodmlError(
                f"The loss {type(self).__name__} needs triplets (a, p, n), and the miner {type(miner).__name__} finds "
                "pairs. Use a miner of triplets, e.g. 'distance'."
            )
        super().__init__(num_classes=num_classes, miner=as_miner(miner))

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        raise NotImplementedError

    def mined(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> Triplets | Pairs:
        """The caller's tuples, else those of the miner, which is handed this loss's distance matrix."""
        if tuples is not None:
            return checked(tuples, distances.embeddings)
        return self.mine(distances.rows, labels, self._for_miner(distances), distances.anchors)

    def mine(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None, anchors: int | None
    ) -> Triplets | Pairs:
        """What the miner finds."""
        assert self.miner is not None
        return self.miner(embeddings.detach(), labels, distances, anchors)

    def partners(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> Partners | None:
        """The positive and the negative of every anchor, where the miner finds one of each; None: see `mined`."""
        if tuples is not None or not isinstance(self.miner, PartnerMiner) or not self.miner.one_an_anchor:
            return None
        embeddings, matrix = distances.embeddings.detach(), self._for_miner(distances)
        if matrix is None:
            return self.miner.partners_of(embeddings, labels, None, distances.anchors)
        with torch.no_grad():  # all is checked already
            return self.miner.partners(embeddings, labels, matrix)

    def measured(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> MeasuredPairs:
        """The mined pairs with their distances."""
        masks = None
        if self.takes_all_triplets(tuples):
            masks = times_in_triplets(*positives_and_negatives(labels, distances.anchors), distances.matrix.dtype)
        elif tuples is None and isinstance(self.miner, PairMiner):
            embeddings = distances.embeddings.detach()
            masks = self.miner.masks(embeddings, labels, self._for_miner(distances), distances.anchors)
        if masks is not None:
            own = labels[: distances.anchors, None]
            return MeasuredPairs(own, distances.matrix, masks[0], own, distances.matrix, masks[1], False)
        partners = self.partners(distances, labels, tuples)
        if partners is not None:
            near, far = read_columns(distances.matrix, partners.columns)
            own = labels[: distances.anchors]
            return MeasuredPairs(own, near, partners.mask, own, far, partners.mask, True)
        mined = self.mined(distances, labels, tuples)
        a1, p, a2, n, positive_mask, negative_mask = as_pairs(mined)
        near, far = distances.between((a1, p), (a2, n))
        own = other = labels.index_select(0, a1)
        if a2 is not a1:
            other = labels.index_select(0, a2)
        return MeasuredPairs(own, near, positive_mask, other, far, negative_mask, isinstance(mined, Triplets))

    def read_triplets(
        self, distances: Distances, labels: Tensor, tuples: Tuples | None, matrix: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of the mined triplets d(a, p), d(a, n), and which of them count, (t,) each; with `matrix`, its entries."""
        partners = self.partners(distances, labels, tuples)
        if partners is not None:
            near, far = read_columns(distances.matrix if matrix is None else matrix, partners.columns)
            return near, far, partners.mask
        a, p, n, mask = self.triplets(distances, labels, tuples)
        pairs = (a, p), (a, n)
        near, far = distances.between(*pairs) if matrix is None else read_pairs(matrix, *pairs)
        return near, far, mask

    def triplets(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> Triplets:
        """Like `mined`, for a loss that cannot do with pairs."""
        mined = self.mined(distances, labels, tuples)
        if isinstance(mined, Pairs):
            raise OodmlError(
                f"The loss {type(self).__name__} needs triplets (a, p, n); its miner or tuples= gave pairs."
            )
        return mined

    def _for_miner(self, distances: Distances) -> Tensor | None:
        """The matrix, where it is on the sphere as a miner wants it, and where the miner looks at it."""
        wanted = self.normalise and getattr(self.miner, "uses_distances", True)
        return distances.matrix.detach() if wanted else None

    def takes_all_triplets(self, tuples: Tuples | None) -> bool:
        """Whether every triplet of the batch is wanted, so that none need be listed."""
        return tuples is None and isinstance(self.miner, All)


class PairMaskLoss(TupleLoss):
    """A loss over whole rows of pairs, which wants masks (a, b) of the positives and negatives of each anchor."""

    def masks(
        self,
        embeddings: Tensor,
        labels: Tensor,
        tuples: Tuples | None,
        anchors: int | None = None,
        distances: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.takes_all_triplets(tuples):  # an anchor that lacks one kind has no triplets, so none of the other
            positives, negatives = positives_and_negatives(labels, anchors)
            return positives & negatives.any(1, keepdim=True), negatives & positives.any(1, keepdim=True)
        if tuples is None and isinstance(self.miner, PairMiner):
            return self.miner.masks(embeddings.detach(), labels, distances, anchors)
        found = self.mine(embeddings, labels, distances, anchors) if tuples is None else checked(tuples, embeddings)
        return pair_masks(as_pairs(found), anchors or len(labels), len(labels))

    def by_labels(self, tuples: Tuples | None) -> bool:
        """Whether the pairs are chosen among those that share a class and those that do not: none is both."""
        return tuples is None and isinstance(self.miner, PairMiner | All)


def times_in_triplets(positives: Tensor, negatives: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """In how many of all triplets each pair (a, p) and each pair (a, n) stands: as many as a has of the other kind."""
    counts = [mask.sum(1, keepdim=True, dtype=dtype) for mask in (negatives, positives)]
    return positives * counts[0], negatives * counts[1]


def as_pairs(mined: Triplets | Pairs) -> Pairs:
    """A triplet (a, p, n) read as the positive pair (a, p) and the negative pair (a, n)."""
    if isinstance(mined, Pairs):
        return mined
    return Pairs(mined.anchor, mined.positive, mined.anchor, mined.negative, mined.mask, mined.mask)


def pair_masks(pairs: Pairs, a: int, b: int) -> tuple[Tensor, Tensor]:
    """Masks (a, b) of the positive and of the negative pairs; a pair listed twice counts once."""

    def mask(rows: Tensor, columns: Tensor, valid: Tensor) -> Tensor:
        counts = torch.zeros(a * b, device=rows.device)
        return (counts.scatter_add(0, rows * b + columns, valid.to(counts.dtype)) > 0).view(a, b)

    return mask(pairs.a1, pairs.p, pairs.positive_mask), mask(pairs.a2, pairs.n, pairs.negative_mask)
