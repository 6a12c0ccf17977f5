"""Tuples that somebody else listed, the caller of a loss or a miner written elsewhere: read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners._base import Pairs, Triplets

FORMS = "(a, p, n), Triplets or Pairs"


def checked(tuples: Any, embeddings: Tensor, what: str = "tuples", forms: str = FORMS) -> Triplets | Pairs:
    """Triplets or pairs as they are; `(a, p, n)` as triplets that are all valid. Wrong indices are refused.

    Errors call the tuples `what`, and what they may be `forms`.
    """
    if isinstance(tuples, Triplets):
        check_indices(tuples[:3], embeddings, 3, what, forms, masks=tuples[3:])
        return tuples
    if isinstance(tuples, Pairs):
        for side, mask in ((tuples[:2], tuples.positive_mask), (tuples[2:4], tuples.negative_mask)):
            check_indices(side, embeddings, 2, what, forms, masks=[mask])
        return tuples
    check_indices(tuples, embeddings, 3, what, forms)
    anchor, positive, negative = tuples
    return Triplets(anchor, positive, negative, torch.ones_like(anchor, dtype=torch.bool))


def check_indices(
    tuples: Any, embeddings: Tensor, length: int, what: str, forms: str, masks: Sequence[Tensor] = ()
) -> None:
    """Refuse anything but `length` index tensors of one length that point into the batch, and masks of that length."""
    if not isinstance(tuples, Sequence):
        raise OodmlError(f"{what} must be {forms}, as 1-D index tensors; got {type(tuples).__name__}.")
    indices = list(tuples)
    if len(indices) != length or not all(isinstance(i, Tensor) and i.ndim == 1 for i in indices):
        raise OodmlError(f"{what} must be {forms}, as 1-D index tensors; got {len(indices)} of {_shapes(indices)}.")
    if any(i.dtype != torch.int64 for i in indices) or len({len(i) for i in indices}) != 1:
        raise OodmlError(f"{what} must be int64 index tensors of one length; got {_shapes(indices)}.")
    if any(not isinstance(m, Tensor) or m.dtype != torch.bool or m.shape != indices[0].shape for m in masks):
        raise OodmlError(f"The masks of {what} must be bool and as long as the indices; got {_shapes(list(masks))}.")
    if embeddings.device.type == "cpu" and not torch.compiler.is_compiling() and len(indices[0]):
        low, high = min(int(i.min()) for i in indices), max(int(i.max()) for i in indices)
        if low < 0 or high >= len(embeddings):
            raise OodmlError(f"{what} must index the batch, 0..{len(embeddings) - 1}; got values from {low} to {high}.")


def _shapes(values: list[Any]) -> str:
    shapes = [f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in values]
    return ", ".join(shapes) or "nothing"
