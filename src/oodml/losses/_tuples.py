"""Objectives on mined tuples: which tuples of the batch a loss looks at."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses._base import Loss, Tuples
from oodml.losses._distances import Distances
from oodml.miners._base import Miner, PairMiner, Pairs, Triplets
from oodml.miners.all import All


class TupleLoss(Loss):
    """A loss whose tuples come from a miner, or from the caller."""

    def __init__(self, miner: Miner | None, *, num_classes: int | None = None) -> None:
        if miner is None:
            raise OodmlError(f"{type(self).__name__} needs a miner; oodml.make_loss gives it its default one.")
        super().__init__(num_classes=num_classes, miner=miner)

    def mined(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> Triplets | Pairs:
        """The caller's tuples, else those of the miner, which is handed this loss's distance matrix."""
        if tuples is not None:
            return checked(tuples, distances.embeddings)
        assert self.miner is not None
        wanted = self.normalise and getattr(self.miner, "uses_distances", True)
        matrix = distances.matrix.detach() if wanted else None
        return checked(self.miner(distances.embeddings.detach(), labels, matrix), distances.embeddings)

    def triplets(self, distances: Distances, labels: Tensor, tuples: Tuples | None) -> Triplets:
        """Like `mined`, for a loss that cannot do with pairs."""
        mined = self.mined(distances, labels, tuples)
        if isinstance(mined, Pairs):
            raise OodmlError(
                f"The loss {type(self).__name__} needs triplets (a, p, n); its miner or tuples= gave pairs."
            )
        return mined

    def takes_all_triplets(self, tuples: Tuples | None) -> bool:
        """Whether every triplet of the batch is wanted, so that none need be listed."""
        return tuples is None and isinstance(self.miner, All)


class PairMaskLoss(TupleLoss):
    """A loss over whole rows of pairs, which wants masks (b, b) of the positives and negatives of each anchor."""

    def masks(
        self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if tuples is None and isinstance(self.miner, PairMiner):
            with torch.no_grad():
                return self.miner.masks(labels, self.miner.prepare(embeddings.detach(), labels, distances))
        if tuples is None:
            assert self.miner is not None
            tuples = self.miner(embeddings.detach(), labels, distances)
        return pair_masks(as_pairs(checked(tuples, embeddings)), len(labels))


def checked(tuples: Tuples, embeddings: Tensor) -> Triplets | Pairs:
    """Triplets or pairs as they are; `(a, p, n)` as triplets that are all valid. Wrong indices are refused."""
    if isinstance(tuples, Triplets | Pairs):
        return tuples
    check_indices(tuples, embeddings, "(a, p, n), Triplets or Pairs", length=3)
    anchor, positive, negative = tuples
    return Triplets(anchor, positive, negative, torch.ones_like(anchor, dtype=torch.bool))


def check_indices(tuples: Tuples, embeddings: Tensor, expected: str, length: int) -> None:
    """Refuse anything but `length` index tensors of one length that point into the batch."""
    indices = list(tuples)
    if len(indices) != length or not all(isinstance(i, Tensor) and i.ndim == 1 for i in indices):
        raise OodmlError(f"tuples must be {expected}, as 1-D index tensors; got {len(indices)} of {_shapes(indices)}.")
    if any(i.dtype != torch.int64 for i in indices) or len({len(i) for i in indices}) != 1:
        raise OodmlError(f"tuples must be int64 index tensors of one length; got {_shapes(indices)}.")
    if embeddings.device.type == "cpu" and not torch.compiler.is_compiling() and len(indices[0]):
        low, high = min(int(i.min()) for i in indices), max(int(i.max()) for i in indices)
        if low < 0 or high >= len(embeddings):
            raise OodmlError(f"tuples must index the batch, 0..{len(embeddings) - 1}; got values from {low} to {high}.")


def as_pairs(mined: Triplets | Pairs) -> Pairs:
    """A triplet (a, p, n) read as the positive pair (a, p) and the negative pair (a, n)."""
    if isinstance(mined, Pairs):
        return mined
    return Pairs(mined.anchor, mined.positive, mined.anchor, mined.negative, mined.mask, mined.mask)


def pair_masks(pairs: Pairs, b: int) -> tuple[Tensor, Tensor]:
    """Masks (b, b) of the positive and of the negative pairs; a pair listed twice counts once."""

    def mask(rows: Tensor, columns: Tensor, valid: Tensor) -> Tensor:
        counts = torch.zeros(b * b, device=rows.device)
        return (counts.scatter_add(0, rows * b + columns, valid.to(counts.dtype)) > 0).view(b, b)

    return mask(pairs.a1, pairs.p, pairs.positive_mask), mask(pairs.a2, pairs.n, pairs.negative_mask)


def _shapes(values: list[Tensor]) -> str:
    shapes = [f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in values]
    return ", ".join(shapes) or "nothing"
