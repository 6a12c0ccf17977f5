"""Histogram loss (Ustinova & Lempitsky, Learning Deep Embeddings with Histogram Loss, NeurIPS 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._tuples import PairMaskLoss
from oodml.miners import Miner
from oodml.miners._autograd import first_order
from oodml.miners._checks import require_whole
from oodml.miners._distances import gram


class _Overlap(torch.autograd.Function):
    """Σ_r h⁻(r) Σ_{q≤r} h⁺(q) of triangular histograms of similarities (a, b) in [−1, 1], by masks (a, b).

    Nodes lie 2/(bins − 1) apart; a value between two of them gives each a share by its nearness. Both histograms are
    counted in one pass, as cells [h⁺ | h⁻]; one sums to 1, or to 0 without values. A value between the nodes r and
    r + 1 changes the sum at the rate h⁺(r + 1) where it is a negative and −h⁻(r) where it is a positive, per step and
    per number of its kind.
    """

    @staticmethod
    def forward(ctx: Any, similarities: Tensor, positives: Tensor, negatives: Tensor, bins: int) -> Tensor:
        position = similarities.clamp(-1, 1).add_(1).mul_((bins - 1) / 2)
        lower = position.floor().clamp_(max=bins - 2)
        counted = positives | negatives
        share = position.sub_(lower).mul_(counted)
        cell = torch.add(lower, negatives, alpha=bins).long().flatten()
        cells = torch.zeros(2 * bins, dtype=position.dtype, device=position.device)
        rest = torch.add(counted, share, alpha=-1)
        cells.index_add_(0, cell, rest.flatten()).index_add_(0, cell + 1, share.flatten())
        totals = cells.view(2, bins).sum(1, keepdim=True).clamp_min_(1)
        histograms = cells.view(2, bins) / totals
        ctx.save_for_backward(histograms, totals, cell, counted)
        return torch.dot(histograms[1], histograms[0].cumsum(0))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        histograms, totals, cell, counted = ctx.saved_tensors
        bins = histograms.shape[1]
        rates = torch.stack([-histograms[1], histograms[0].roll(-1)]).mul_(gradient / totals).mul_((bins - 1) / 2)
        return rates.flatten().index_select(0, cell).view_as(counted).mul_(counted), None, None, None


def unordered(mask: Tensor) -> Tensor:
    """Each pair of anchors that is marked in either direction once, above the diagonal; (a, b) -> (a, b), a ≤ b."""
    anchors = mask[:, : len(mask)]
    if mask.shape[1] > len(mask):
        return torch.cat([anchors | anchors.T, mask[:, len(mask) :]], dim=1).triu(1)
    return (mask | mask.T).triu(1)


@register_loss("histogram", paper="Ustinova & Lempitsky 2016", default_miner="lifted", search={"bins": (11, 129)})
class Histogram(PairMaskLoss):
    """The probability that a negative pair is more similar than a positive one, from two soft histograms.

    Σ_r h⁻(r) Σ_{q≤r} h⁺(q) over `bins` nodes on [−1, 1] (revisiting-supplement eqs. 7–9; 65 nodes, SOP 11), cosines of
    each unordered pair of the batch once.
    """

    def __init__(self, bins: int = 65, miner: Miner | None = None) -> None:
        super().__init__(miner)
        require_whole(2, bins=bins)  # the nodes at −1 and 1
        self.bins = bins

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.masks(embeddings, labels, tuples, anchors)
        similarities, positives, negatives = gram(embeddings, anchors), unordered(positives), unordered(negatives)
        if not self.by_labels(tuples):  # a pair may be a positive of one anchor and a negative of another: in both then
            none = torch.zeros_like(positives)
            similarities = torch.cat([similarities, similarities])
            positives, negatives = torch.cat([positives, none]), torch.cat([none, negatives])
        return _Overlap.apply(similarities, positives, negatives, self.bins)
