"""Distances between the embeddings of a batch, safe to differentiate where two of them coincide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Below the rounding error of ‖x‖² + ‖y‖² − 2xᵀy on the unit sphere; √ε = 1e-4 is what equal points are apart.
EPSILON = 1e-8


def root(squared: Tensor) -> Tensor:
    """√max(squared, ε): value and gradient stay finite at 0, and the gradient there is 0."""
    return squared.clamp_min(EPSILON).sqrt()


class _Unit(torch.autograd.Function):
    """x/‖x‖ by rows; the gradient (g − u uᵀg)/‖x‖ in four passes over the rows where autograd's own rule takes ten."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x / _norms(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        norms = _norms(x)
        along = (gradient * x).sum(1, keepdim=True) / norms / norms  # in two steps: ‖x‖² may overflow
        return (gradient - along * x) / norms


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1e-12)


def unit_rows(x: Tensor) -> Tensor:
    """The rows divided by their Euclidean norms, (b, d) -> (b, d)."""
    return _Unit.apply(x)


class _Gram(torch.autograd.Function):
    """x xᵀ, whose gradient (G + Gᵀ) x is one matrix product where autograd's own rule takes two."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x @ x.T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (gradient + gradient.T) @ x


def gram(x: Tensor) -> Tensor:
    """All inner products of the rows, (b, d) -> (b, b)."""
    return _Gram.apply(x)


def squared_distances(products: Tensor) -> Tensor:
    """‖x_i − x_j‖² (b, b) from all inner products (b, b); rows that are equal come out exactly 0 apart."""
    norms = products.diagonal()
    return (norms[:, None] + norms).sub(products, alpha=2)


def distance_matrix(embeddings: Tensor) -> Tensor:
    """Euclidean distances √max(‖x_i − x_j‖², ε), (b, d) -> (b, b)."""
    return root(squared_distances(gram(embeddings)))


def same_class(labels: Tensor) -> Tensor:
    """(b,) -> (b, b) bool: True where both samples share a label (the diagonal included)."""
    return labels[:, None] == labels[None, :]


def positives_and_negatives(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (b, b) of the samples that share the anchor's class, itself excluded, and of those that do not."""
    same = same_class(labels)
    return same.clone().fill_diagonal_(False), ~same
