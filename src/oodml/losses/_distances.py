"""Tensor functions the tuple objectives share: distances of a batch, masked means, sums over all triplets."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from oodml.miners._autograd import first_order
from oodml.miners._directions import direction_distances
from oodml.miners._distances import (
    EPSILON,
    distance_matrix,
    runs_on_cpu,
    squared_distance_matrix,
    unit_rows,
    where_else,
)

_FEW = 4  # up to this many tuples a sample, row differences cost less than the backward pass of the whole matrix


class Distances:
    """Euclidean distances between the rows of one batch; their matrix is computed when first needed, and only once.

    Miner and loss share it, and the loss reads its tuples from it. With `anchors=a` the matrix (a, b) starts from the
    first a rows alone. `unit`: the rows come from `unit_rows`, see `distance_matrix`.
    """

    def __init__(self, embeddings: Tensor, anchors: int | None = None, unit: bool = False) -> None:
        self.embeddings, self.anchors, self.unit = embeddings, anchors, unit
        self._squared: Tensor | None = None
        self._matrix: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        return self.embeddings

    @property
    def squared_matrix(self) -> Tensor:
        if self._squared is None:
            self._squared = squared_distance_matrix(self.rows, self.anchors, self.unit)
        return self._squared

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:
            self._matrix = self._measure()
        return self._matrix

    def _measure(self) -> Tensor:
        return distance_matrix(self.rows, self.anchors, self.unit)

    def between(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """√max(‖x_i − x_j‖², ε) for each pair (i, j) of index tensors (t,), i an anchor.

        A handful of pairs is measured from the rows themselves unless the matrix is there already.
        """
        lengths = [len(i) for i, _ in pairs]
        if self._matrix is not None or sum(lengths) > _FEW * len(self.embeddings):
            return read_pairs(self.matrix, *pairs)
        first, second = zip(*pairs, strict=True)
        i, j = self.rows.index_select(0, torch.cat([*first, *second])).chunk(2)
        norms = torch.linalg.vector_norm(i - j, dim=1)  # its gradient at 0 is 0
        return norms.clamp_min(math.sqrt(EPSILON)).split(lengths)


class Directions(Distances):
    """The same between the directions of rows of any norm, which are normalised when first needed."""

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__(embeddings, unit=True)
        self._rows: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = unit_rows(self.embeddings)
        return self._rows

    def _measure(self) -> Tensor:
        return direction_distances(self.embeddings) if runs_on_cpu(self.embeddings) else super()._measure()


def on_sphere(embeddings: Tensor, anchors: int | None) -> Distances:
    """Distances on the unit sphere. A memory, which alone has anchors, keeps unit rows."""
    return Directions(embeddings) if anchors is None else Distances(embeddings, anchors, unit=True)


def read_pairs(matrix: Tensor, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The entries (i, j) of a matrix for each pair of index tensors (t,)."""
    i, j = (torch.cat(side) for side in zip(*pairs, strict=True))
    places = torch.add(j, i, alpha=matrix.shape[1])
    return matrix.flatten().gather(0, places).split([len(i) for i, _ in pairs])


def read_columns(matrix: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
    """From each row of a matrix (a, b) the entries in its columns (k, a); k lists (a,)."""
    return matrix.gather(1, columns.T).unbind(1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values, all finite, whose mask is True; 0 (with a gradient of 0) where there are none."""
    shares = mask / mask.sum(dtype=values.dtype).clamp_min_(1)
    return torch.dot(values.flatten(), shares.flatten())


def active_mean(excess: Tensor, mask: Tensor, by_column: bool = False) -> Tensor:
    """Σ [excess]₊ over the entries whose mask is True, by the number of terms above 0; 0 where there are none.

    With `by_column`, the number of columns of `excess` (k, t) that have such a term. A mask of numbers says how often
    an entry counts.
    """
    with torch.no_grad():  # the sum is linear in the terms that are active
        active = mask * (excess > 0)
        terms = active.any(0) if by_column else active
        shares = active / terms.sum(dtype=excess.dtype).clamp_min_(1)
    return torch.dot(excess.flatten(), shares.flatten())


class _MaskedLogSumExp(torch.autograd.Function):
    """By way of a softmax, one kernel that serves value and gradient: `torch.logsumexp` has nine, and three back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor, dim: int) -> Tensor:
        masked = where_else(mask, values, torch.finfo(values.dtype).min / 4)
        shares = masked.softmax(dim)
        ctx.save_for_backward(shares)
        ctx.dim = dim
        return masked.amax(dim) - shares.amax(dim).log_()  # the largest share is 1 / Σ e^{v − max}

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (shares,) = ctx.saved_tensors
        return shares * gradient.unsqueeze(ctx.dim), None, None


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """log Σ exp over the True entries of each row, (a, b) -> (a,); an empty row gives a huge negative number.

    Not −∞, whose gradient would be NaN. The caller's function must be flat there, as [·]₊ and softplus are: what
    reaches an empty row from behind is spread over entries that do not count.
    """
    return _MaskedLogSumExp.apply(values, mask, dim)
