"""Histogram loss (Ustinova & Lempitsky, Learning Deep Embeddings with Histogram Loss, NeurIPS 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_whole
from oodml._tensors import inner_products
from oodml.losses import PairMaskLoss, register_loss
from oodml.losses.base import Tuples
from oodml.miners import Miner


def soft_histogram(values: Tensor, mask: Tensor, bins: int) -> Tensor:
    """h(r) = mean of [1 − |value − t_r|/Δ]₊ over the True entries, for `bins` nodes t_r on [−1, 1], Δ apart: (bins,).

    Each value is shared by the two nodes next to it.
    """
    position = (values.clamp(-1, 1) + 1) * ((bins - 1) / 2)
    node = position.detach().floor().clamp(max=bins - 2).long()
    upper = (position - node) * mask
    lower = mask.to(values.dtype) - upper
    counts = values.new_zeros(bins).index_add(0, node.flatten(), lower.flatten())
    return counts.index_add(0, node.flatten() + 1, upper.flatten()) / mask.sum().clamp_min(1)


def unordered(mask: Tensor) -> Tensor:
    """Each pair of anchors that is True in either order once, above the diagonal; (a, b) -> (a, b), a ≤ b."""
    anchors, others = mask[:, : len(mask)], mask[:, len(mask) :]
    return torch.cat([anchors | anchors.T, others], dim=1).triu(1)


@register_loss("histogram", paper="Ustinova & Lempitsky 2016", search={"bins": (11, 129)})
class Histogram(PairMaskLoss):
    """The probability that a negative pair is more similar than a positive one, from two soft histograms.

    Σ_r h⁻(r) Σ_{q≤r} h⁺(q) over `bins` nodes on [−1, 1] (revisiting-supplement eqs. 7–9; 65 nodes, SOP 11), cosines of
    each unordered pair of the batch once.
    """

    def __init__(
        self,
        bins: int = 65,
        miner: str | dict[str, Any] | Miner = "lifted",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_whole(2, bins=bins)  # the nodes at −1 and 1
        self.bins = bins

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        cosines = inner_products(embeddings, anchors)
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        positive_histogram = soft_histogram(cosines, unordered(positives), self.bins)
        negative_histogram = soft_histogram(cosines, unordered(negatives), self.bins)
        return negative_histogram @ positive_histogram.cumsum(0)
