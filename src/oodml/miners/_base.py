"""What every miner returns and shares."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Triplets(NamedTuple):
    """Index tensors (t,) int64; `mask` (t,) bool marks the rows that are valid, so shapes stay static."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    mask: Tensor


class Pairs(NamedTuple):
    """Positive pairs (a1, p) and negative pairs (a2, n) with their own masks."""

    a1: Tensor
    p: Tensor
    a2: Tensor
    n: Tensor
    positive_mask: Tensor
    negative_mask: Tensor


class Miner:
    """`miner(embeddings, labels, distances=None)`; `distances` (b, b) saves recomputing what the loss has already."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __call__(self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None) -> Triplets | Pairs:
        raise NotImplementedError
