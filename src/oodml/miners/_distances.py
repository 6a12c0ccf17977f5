"""Distances between the embeddings of a batch, safe to differentiate where two of them coincide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Below the rounding error of ‖x‖² + ‖y‖² − 2xᵀy on the unit sphere; √ε = 1e-4 is what equal points are apart.
EPSILON = 1e-8
_CLAMPED = 1.0001e-4  # a distance below this is √ε, whichever way its last digit was rounded


def root(squared: Tensor) -> Tensor:
    """√max(squared, ε): value and gradient stay finite at 0, and the gradient there is 0."""
    return squared.clamp_min(EPSILON).sqrt()


class _Unit(torch.autograd.Function):
    """u = x/‖x‖ by rows; the gradient (g − u uᵀg)/‖x‖ in four passes over the rows where autograd's rule takes ten."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x / _norms(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, unit = ctx.saved_tensors
        along = (gradient * unit).sum(1, keepdim=True)
        return gradient.addcmul(along, unit, value=-1).div_(_norms(x))


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


class _Products(torch.autograd.Function):
    """x [x; m]ᵀ for constants m: G [x; m] and, for x on the right, the leading square of Gᵀ times x."""

    @staticmethod
    def forward(x: Tensor, references: Tensor) -> Tensor:
        return x @ references.T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, references = ctx.saved_tensors
        return torch.addmm(gradient @ references, gradient[:, : len(x)].T, x), None


def gram(x: Tensor, anchors: int | None = None) -> Tensor:
    """The inner products of the first `anchors` rows (None: of all) with all rows, (b, d) -> (a, b).

    Rows after the anchors count as constants.
    """
    if anchors is None or anchors == len(x):
        return _Gram.apply(x)
    return _Products.apply(x[:anchors], x.detach())


def squared_distance_matrix(embeddings: Tensor, anchors: int | None = None) -> Tensor:
    """‖x_i − x_j‖² of the first `anchors` rows (None: of all) and all rows, (b, d) -> (a, b).

    Anchors that are equal come out exactly 0 apart.
    """
    products = gram(embeddings, anchors)
    norms = others = products.diagonal()
    if len(norms) < len(embeddings):
        others = torch.cat([norms, embeddings[anchors:].detach().square().sum(1)])
    return (norms[:, None] + others).sub(products, alpha=2)


class _Euclidean(torch.autograd.Function):
    """√max(‖x_i − y_j‖², ε) of anchors x (a, d) and references y = [x; constants] (b, d).

    With W = G/d, the gradient is Σ_j W_ij (x_i − y_j), and the same from the columns that are anchors: two passes over
    a matrix and one product, where autograd's own rule takes ten passes.
    """

    @staticmethod
    def forward(x: Tensor, references: Tensor) -> Tensor:
        products = x @ references.T
        norms = others = products.diagonal()
        if len(x) < len(references):
            others = torch.cat([norms, references[len(x) :].square().sum(1)])
        return (norms[:, None] + others).sub_(products, alpha=2).clamp_min_(EPSILON).sqrt_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, references, distances = ctx.saved_tensors
        weights = (gradient / distances).masked_fill(distances < _CLAMPED, 0)
        mirrored = weights[:, : len(x)].T
        if len(x) == len(references):
            weights = weights + mirrored
            weights.diagonal().sub_(weights.sum(1))  # then Σ_j W_ij (x_i − x_j) is one product
            return torch.addmm(x, weights, x, beta=0, alpha=-1), None
        total = weights.sum(1, keepdim=True) + mirrored.sum(1, keepdim=True)
        return total * x - torch.addmm(weights @ references, mirrored, x), None


def distance_matrix(embeddings: Tensor, anchors: int | None = None) -> Tensor:
    """√max(‖x_i − x_j‖², ε) of the first `anchors` rows (None: of all) and all rows, (b, d) -> (a, b).

    Rows after the anchors count as constants. Anchors that are equal come out exactly √ε apart.
    """
    return _Euclidean.apply(embeddings[:anchors], embeddings.detach())


def same_class(labels: Tensor, anchors: int | None = None) -> Tensor:
    """(b,) -> (a, b) bool: True where anchor and sample share a label (the anchor itself included)."""
    return labels[:anchors, None] == labels


def positives_and_negatives(labels: Tensor, anchors: int | None = None) -> tuple[Tensor, Tensor]:
    """Masks (a, b) of the samples that share the anchor's class, itself excluded, and of those that do not.

    The anchors are the first `anchors` samples; None: all of them.
    """
    negatives = labels[:anchors, None] != labels
    return (~negatives).fill_diagonal_(False), negatives
