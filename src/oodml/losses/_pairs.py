"""What the objectives over all pairs of anchors and references share: cosines, and which pairs count."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses._base import Loss, Tuples


class PairLoss(Loss):
    """An objective over cosines (a, r) of anchors and references, with boolean masks (a, r) of the pairs that count.

    In a plain batch the samples are anchors and references at once, and none is paired with itself; the cross-batch
    memory adds references. A subclass writes `pair_loss(similarities, positive, negative)`.
    """

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        positive, negative = pairs_of_labels(labels, labels) if tuples is None else pairs_of_tuples(tuples, len(labels))
        return self.pair_loss(embeddings @ embeddings.T, positive, negative)

    def pair_loss(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        raise NotImplementedError


def pairs_of_labels(anchors: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (a, r) of positive and negative pairs; the first references are the anchors themselves."""
    same = anchors[:, None] == references
    itself = torch.eye(len(anchors), len(references), dtype=torch.bool, device=anchors.device)
    return same & ~itself, ~same


def pairs_of_tuples(tuples: Tuples, size: int) -> tuple[Tensor, Tensor]:
    """Masks (size, size) of the pairs that explicit index tensors name: (a, p, n), `Triplets` or `Pairs`."""
    if len(tuples) == 6:  # Pairs
        a1, p, a2, n, positive_mask, negative_mask = tuples
        return _mark(a1, p, positive_mask, size), _mark(a2, n, negative_mask, size)
    if len(tuples) not in (3, 4):
        raise OodmlError(f"tuples must be (a, p, n), Triplets or Pairs, got {len(tuples)} index tensors.")
    anchor, positive, negative = tuples[:3]
    mask = tuples[3] if len(tuples) == 4 else torch.ones_like(anchor, dtype=torch.bool)
    if mask.dtype != torch.bool:
        raise OodmlError("tuples of four must be Triplets, with a boolean mask; quadruplets fit `quadruplet` only.")
    return _mark(anchor, positive, mask, size), _mark(anchor, negative, mask, size)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values under the mask, 0 (with a zero gradient) where there are none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def _mark(rows: Tensor, columns: Tensor, mask: Tensor, size: int) -> Tensor:
    # A pair may be named several times, valid and not: it counts if any of them is valid.
    hits = torch.zeros(size * size, dtype=torch.int32, device=rows.device)
    return (hits.index_add(0, rows * size + columns, mask.int()) > 0).view(size, size)
