"""Tensor functions the tuple objectives share: distances of a batch, masked means, sums over all triplets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oodml.miners._distances import EPSILON, distance_matrix, squared_distance_matrix

_FEW = 4  # up to this many tuples a sample, row differences cost less than the backward pass of the whole matrix
_BLOCK = 2**22  # entries of a block of triplets


class Distances:
    """Euclidean distances between the rows of one batch; their matrix is computed when first needed, and only once.

    Miner and loss share it. A handful of pairs is measured from the rows themselves, which is exact for equal points
    and spares the backward pass of the matrix; a long list is read from the matrix. With `anchors=a` the matrix (a, b)
    starts from the first a rows alone.
    """

    def __init__(self, embeddings: Tensor, anchors: int | None = None) -> None:
        self.embeddings, self.anchors = embeddings, anchors
        self._squared: Tensor | None = None
        self._matrix: Tensor | None = None

    @property
    def squared_matrix(self) -> Tensor:
        if self._squared is None:
            self._squared = squared_distance_matrix(self.embeddings, self.anchors)
        return self._squared

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:
            self._matrix = distance_matrix(self.embeddings, self.anchors)
        return self._matrix

    def squared(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """‖x_i − x_j‖² for each pair (i, j) of index tensors (t,), i an anchor; all are measured as one list."""
        lengths = [len(i) for i, _ in pairs]
        if sum(lengths) > _FEW * len(self.embeddings):
            return self._read(self.squared_matrix, pairs).split(lengths)
        return self._differences(pairs).square().sum(1).split(lengths)

    def between(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """√max(‖x_i − x_j‖², ε) for each pair (i, j) of index tensors (t,), i an anchor."""
        lengths = [len(i) for i, _ in pairs]
        if sum(lengths) > _FEW * len(self.embeddings):
            return self._read(self.matrix, pairs).split(lengths)
        norms = torch.linalg.vector_norm(self._differences(pairs), dim=1)  # its gradient at 0 is 0
        return norms.clamp_min(math.sqrt(EPSILON)).split(lengths)

    def _read(self, matrix: Tensor, pairs: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        i, j = (torch.cat(side) for side in zip(*pairs, strict=True))
        return matrix.flatten().gather(0, i * matrix.shape[1] + j)

    def _differences(self, pairs: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        """x_i − x_j, both read in one pass, which the gradient then takes once too."""
        first, second = zip(*pairs, strict=True)
        i, j = self.embeddings.index_select(0, torch.cat([*first, *second])).chunk(2)
        return i - j


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values whose mask is True; 0 (with a gradient of 0) where there are none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """log Σ exp over the True entries of each row, (a, b) -> (a,); an empty row gives a huge negative number.

    Not −∞, whose gradient would be NaN.
    """
    return values.masked_fill(~mask, torch.finfo(values.dtype).min / 4).logsumexp(1)


def all_triplets_hinge(
    matrix: Tensor, positives: Tensor, negatives: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ [m_ap − m_an + margin]₊ over every triplet of the anchors, how many terms are active, and how many there are.

    The sum is linear in the matrix: an entry (a, p) counts as often as it has active negatives, an entry (a, n) is
    subtracted as often as it is one. Only these counts are taken triplet by triplet, in blocks of rows that bound the
    memory and without a graph, so a cubic tensor is neither made nor kept for the backward pass.
    """
    with torch.no_grad():
        b = matrix.shape[1]
        weights, count = torch.zeros_like(matrix), matrix.new_zeros(())
        triplets = (positives.sum(1) * negatives.sum(1)).sum()
        far = matrix.masked_fill(~negatives, torch.inf)  # what is no negative is never near enough
        pairs = positives.flatten().nonzero()[:, 0]  # a·b + p
        for pair in pairs.split(max(1, _BLOCK // b)):
            a = pair // b
            reach = matrix.flatten().index_select(0, pair) + margin
            active = (far.index_select(0, a) < reach[:, None]).to(matrix.dtype)
            nearer = active.sum(1)
            weights.index_add_(0, a, active, alpha=-1).view(-1).index_add_(0, pair, nearer)
            count += nearer.sum()
    return (weights * matrix).sum() + margin * count, count, triplets
