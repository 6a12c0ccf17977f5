"""Tensor functions the tuple objectives share: distances of a batch, masked means, sums over all triplets."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.miners._distances import gram, root, squared_distances

_FEW = 4  # up to this many tuples a sample, row differences cost less than the backward pass of the whole matrix


class Distances:
    """Euclidean distances between the rows of one batch; their matrix is computed when first needed, and only once.

    Miner and loss share it. A handful of pairs is measured from the rows themselves, which is exact for equal points
    and spares the (b, b) backward pass; a long list is read from the matrix.
    """

    def __init__(self, embeddings: Tensor) -> None:
        self.embeddings = embeddings
        self._squared: Tensor | None = None
        self._matrix: Tensor | None = None

    @property
    def squared_matrix(self) -> Tensor:
        if self._squared is None:
            self._squared = squared_distances(gram(self.embeddings)).clamp_min(0)
        return self._squared

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:
            self._matrix = root(self.squared_matrix)
        return self._matrix

    def squared(self, i: Tensor, j: Tensor) -> Tensor:
        """‖x_i − x_j‖² for index tensors (t,)."""
        b = len(self.embeddings)
        if len(i) > _FEW * b:
            return self.squared_matrix.flatten().gather(0, i * b + j)
        difference = self.embeddings.index_select(0, i) - self.embeddings.index_select(0, j)
        return difference.square().sum(1)

    def between(self, i: Tensor, j: Tensor) -> Tensor:
        """√max(‖x_i − x_j‖², ε) for index tensors (t,)."""
        return root(self.squared(i, j))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values whose mask is True; 0 (with a gradient of 0) where there are none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """log Σ exp over the True entries of each row, (b, c) -> (b,); an empty row gives a huge negative number.

    Not −∞, whose gradient would be NaN.
    """
    return values.masked_fill(~mask, torch.finfo(values.dtype).min / 4).logsumexp(1)


def all_triplets_hinge(
    matrix: Tensor, positives: Tensor, negatives: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ [m_ap − m_an + margin]₊ over every triplet of the batch, how many terms are active, and how many there are.

    The negatives of an anchor are sorted once; then a pair (a, p) has k active terms, those of its k nearest
    negatives, and their sum is k·(m_ap + margin) − (sum of the k nearest): O(b² log b) time and O(b²) memory for what
    would be O(b³) triplets.
    """
    nearest = matrix.masked_fill(~negatives, torch.inf).sort(1).values
    reach = matrix + margin
    active = torch.searchsorted(nearest.detach(), reach.detach())
    sums = torch.nn.functional.pad(nearest.masked_fill(nearest.isinf(), 0.0).cumsum(1), (1, 0))
    terms = torch.where(positives, active * reach - sums.gather(1, active), 0.0)
    triplets = (positives.sum(1) * negatives.sum(1)).sum()
    return terms.sum(), torch.where(positives, active, 0).sum(), triplets
