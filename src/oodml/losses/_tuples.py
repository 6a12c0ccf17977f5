"""Objectives on mined tuples: which tuples of the batch a loss looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses._base import Loss, Tuples
from oodml.losses._distances import Distances, read_columns, read_pairs
from oodml.miners._base import Miner, PairMiner, Pairs, PartnerMiner, Partners, Triplets, mine_rows
from oodml.miners._distances import positives_and_negatives
from oodml.miners.all import All


class MeasuredPairs(NamedTuple):
    """Distances of positive and of negative pairs, the labels of their anchors, and which entries count.

    Lists (t,); or, where a pair miner chose, the whole matrix (a, b) with masks, and labels (a, 1).
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

    With `anchors=a`, `compute` looks at tuples of the first a embeddings alone; the others are constants.
    """

    def __init__(self, miner: Miner | None, *, num_classes: int | None = None) -> None:
        if miner is None:
            raise OodmlError(f"{type(self).__name__} needs a miner; oodml.make_loss gives it its default one.")
        super().__init__(num_classes=num_classes, miner=miner)

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        raise NotImplementedError

    def mined(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> Triplets | Pairs:
        """The caller's tuples, else those of the miner, which is handed this loss's distance matrix."""
        if tuples is not None:
            return checked(tuples, distances.embeddings)
        return self.mine(distances.embeddings, labels, self._for_miner(distances), distances.anchors)

    def mine(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None, anchors: int | None
    ) -> Triplets | Pairs:
        """What the miner finds; that of a callable from elsewhere is checked."""
        assert self.miner is not None
        found = mine_rows(self.miner, embeddings.detach(), labels, distances, anchors)
        return found if isinstance(self.miner, Miner) else checked(found, embeddings)

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
        if tuples is None and isinstance(self.miner, PairMiner):
            embeddings = distances.embeddings.detach()
            masks = self.miner.masks(embeddings, labels, self._for_miner(distances), distances.anchors)
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


def checked(tuples: Tuples, embeddings: Tensor) -> Triplets | Pairs:
    """Triplets or pairs as they are; `(a, p, n)` as triplets that are all valid. Wrong indices are refused."""
    expected = "(a, p, n), Triplets or Pairs"
    if isinstance(tuples, Triplets):
        check_indices(tuples[:3], embeddings, expected, length=3, masks=tuples[3:])
        return tuples
    if isinstance(tuples, Pairs):
        for side, mask in ((tuples[:2], tuples.positive_mask), (tuples[2:4], tuples.negative_mask)):
            check_indices(side, embeddings, expected, length=2, masks=[mask])
        return tuples
    check_indices(tuples, embeddings, expected, length=3)
    anchor, positive, negative = tuples
    return Triplets(anchor, positive, negative, torch.ones_like(anchor, dtype=torch.bool))


def check_indices(tuples: Tuples, embeddings: Tensor, expected: str, length: int, masks: Sequence[Tensor] = ()) -> None:
    """Refuse anything but `length` index tensors of one length that point into the batch, and masks of that length."""
    if not isinstance(tuples, Sequence):
        raise OodmlError(f"tuples must be {expected}, as 1-D index tensors; got {type(tuples).__name__}.")
    indices = list(tuples)
    if len(indices) != length or not all(isinstance(i, Tensor) and i.ndim == 1 for i in indices):
        raise OodmlError(f"tuples must be {expected}, as 1-D index tensors; got {len(indices)} of {_shapes(indices)}.")
    if any(i.dtype != torch.int64 for i in indices) or len({len(i) for i in indices}) != 1:
        raise OodmlError(f"tuples must be int64 index tensors of one length; got {_shapes(indices)}.")
    if any(not isinstance(m, Tensor) or m.dtype != torch.bool or m.shape != indices[0].shape for m in masks):
        raise OodmlError(f"The masks of tuples must be bool and as long as the indices; got {_shapes(list(masks))}.")
    if embeddings.device.type == "cpu" and not torch.compiler.is_compiling() and len(indices[0]):
        low, high = min(int(i.min()) for i in indices), max(int(i.max()) for i in indices)
        if low < 0 or high >= len(embeddings):
            raise OodmlError(f"tuples must index the batch, 0..{len(embeddings) - 1}; got values from {low} to {high}.")


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


def _shapes(values: list[Tensor]) -> str:
    shapes = [f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in values]
    return ", ".join(shapes) or "nothing"
