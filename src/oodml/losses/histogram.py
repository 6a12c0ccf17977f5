"""Histogram loss (Ustinova & Lempitsky, Learning Deep Embeddings with Histogram Loss, NeurIPS 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._tuples import PairMaskLoss
from oodml.miners import Miner
from oodml.miners._distances import gram


def soft_histograms(similarities: Tensor, positives: Tensor, negatives: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Triangular histograms of the positive and of the negative similarities, (t,) in [−1, 1] -> (bins,) each.

    Nodes lie 2/(bins − 1) apart; a value between two of them gives each a share by its nearness. Both are counted in
    one pass of 2·bins cells; a histogram sums to 1, or to 0 without values.
    """
    position = (similarities.clamp(-1, 1) + 1) * ((bins - 1) / 2)
    lower = position.detach().floor().clamp(max=bins - 2)
    share = position - lower
    cell = lower.long() + torch.where(negatives, bins, 0)
    counted = positives | negatives
    cells = torch.zeros(2 * bins, dtype=similarities.dtype, device=similarities.device)
    cells = cells.index_add(0, cell, torch.where(counted, 1 - share, 0.0))
    cells = cells.index_add(0, cell + 1, torch.where(counted, share, 0.0))
    positive, negative = cells.view(2, bins)
    return positive / positives.sum().clamp_min(1), negative / negatives.sum().clamp_min(1)


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
        if bins < 2:
            raise OodmlError(f"bins must be at least 2 (the nodes at −1 and 1), got {bins}.")
        self.bins = bins

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.masks(embeddings, labels, tuples, anchors)
        similarities = gram(embeddings, anchors).flatten()
        positives, negatives = unordered(positives).flatten(), unordered(negatives).flatten()
        positive, negative = soft_histograms(similarities, positives, negatives, self.bins)
        return (negative * positive.cumsum(0)).sum()
