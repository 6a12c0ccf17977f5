"""Distances between the embeddings of a batch, safe to differentiate where two of them coincide."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from oodml.miners._autograd import first_order

# Below the rounding error of ‖x‖² + ‖y‖² − 2xᵀy on the unit sphere; √ε = 1e-4 is what equal points are apart.
EPSILON = 1e-8
SMALLEST = 1e-12  # norm that rows are divided by
NOISE = 2e-3  # in float32 two unit rows nearer than this may be equal: their distance is rounding error
CLAMPED = 1.0001e-4  # a distance below this is √ε, whichever way its last digit was rounded


def beyond_noise(distances: Tensor) -> Tensor:
    """The distances, in place, raised to what equal points may be apart: these are not farther than one another.

    In float32 that is rounding, in float64 the √ε that a distance is at least.
    """
    return distances.clamp_min_(CLAMPED if distances.dtype == torch.float64 else NOISE)


def root(squared: Tensor) -> Tensor:
    """√max(squared, ε): value and gradient stay finite at 0, and the gradient there is 0."""
    return squared.clamp_min(EPSILON).sqrt()


class _Unit(torch.autograd.Function):
    """u = x/‖x‖ by rows; the gradient (g − u uᵀg)/‖x‖ in four passes over the rows where autograd's rule takes ten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(SMALLEST)
        unit = x / norms
        ctx.save_for_backward(unit, norms)
        return unit

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, norms = ctx.saved_tensors
        along = (gradient * unit).sum(1, keepdim=True)
        return gradient.addcmul(along, unit, value=-1).div_(norms)


def unit_rows(x: Tensor) -> Tensor:
    """The rows divided by their Euclidean norms, (b, d) -> (b, d)."""
    return unit_rows_at_once(x) if x.is_cuda and _runs_now(x) else _Unit.apply(x)


def unit_rows_at_once(x: Tensor) -> Tensor:
    """The same by PyTorch's root-mean-square norm: on a GPU one kernel forth and one back, five fewer than `_Unit`.

    It divides by √(‖x‖² + tiny²) where `_Unit` divides by max(‖x‖, tiny).
    """
    dim = x.shape[1]
    scale = _constant((dim,), dim**-0.5, x.dtype, x.device)
    return torch.nn.functional.rms_norm(x, (dim,), scale, SMALLEST**2 / dim)


def where_else(mask: Tensor, values: Tensor, otherwise: float) -> Tensor:
    """The values where the mask is True and a number elsewhere."""
    return torch.where(mask, values, _number(otherwise, values))


def except_where(mask: Tensor, values: Tensor, number: float) -> Tensor:
    """A number where the mask is True and the values elsewhere; on a CPU a third of the time of `masked_fill_`."""
    return torch.where(mask, _number(number, values), values)


def _number(value: float, like: Tensor) -> Tensor | float:
    """The number, where that can be kept as a tensor: on a GPU no kernel has to write it each time."""
    return _constant((), value, like.dtype, like.device) if _runs_now(like) else value


def _runs_now(x: Tensor) -> bool:
    """Whether operations on a tensor are carried out, not recorded: nothing made in a recording may be kept."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


@functools.lru_cache(maxsize=64)
def _constant(shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full(shape, value, dtype=dtype, device=device)


def runs_on_cpu(x: Tensor) -> bool:
    """Whether operations on a tensor are carried out on a CPU, at once: looking at a value then costs nothing."""
    return x.is_cpu and _runs_now(x)


def diagonal(matrix: Tensor) -> Tensor:
    """The entries (i, i) of a matrix (a, b), a ≤ b.

    No view of it where this is compiled: a backward pass that is handed both may be written over the matrix before it
    has read the view (torch 2.13 and before).
    """
    if torch.compiler.is_compiling():
        places = torch.arange(len(matrix), device=matrix.device)
        return matrix[places, places]
    return matrix.diagonal()


# In the functions below nothing that `forward` returns is written in place: compiled by torch 2.11, its gradient is 0.


class _Gram(torch.autograd.Function):
    """x xᵀ, whose gradient (G + Gᵀ) x is one matrix product where autograd's own rule takes two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (gradient + gradient.T) @ x


class _Products(torch.autograd.Function):
    """x [x; m]ᵀ for constants m: G [x; m] and, for x on the right, the leading square of Gᵀ times x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, references: Tensor) -> Tensor:
        ctx.save_for_backward(x, references)
        return x @ references.T

    @staticmethod
    @first_order
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


class _SquaredEuclidean(torch.autograd.Function):
    """‖x_i − y_j‖² of anchors x (a, d) and references y = [x; constants] (b, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, references: Tensor, unit: bool) -> Tensor:
        ctx.save_for_backward(x, references)
        ctx.unit = unit
        return _squared(x, references)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, references = ctx.saved_tensors
        return _sum_of_differences(2 * gradient, x, references, ctx.unit), None, None


class _Euclidean(torch.autograd.Function):
    """√max(‖x_i − y_j‖², ε) of anchors x (a, d) and references y = [x; constants] (b, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, references: Tensor, unit: bool) -> Tensor:
        distances = _squared(x, references).clamp_min(EPSILON).sqrt()
        ctx.save_for_backward(x, references, distances)
        ctx.unit = unit
        return distances

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, references, distances = ctx.saved_tensors
        moved = torch.ops.aten.threshold_backward(gradient, distances, CLAMPED)  # 0 where the distance was clamped
        return _sum_of_differences(moved.div_(distances), x, references, ctx.unit), None, None


def _squared(x: Tensor, references: Tensor) -> Tensor:
    """Norms are read off the products, whose rounding they share: anchors that are equal come out next to 0 apart."""
    products = x @ references.T
    norms = others = diagonal(products)
    if len(x) < len(references):
        others = torch.cat([norms, references[len(x) :].square().sum(1)])
    return torch.sub(norms[:, None] + others, products, alpha=2)


def _sum_of_differences(weights: Tensor, x: Tensor, references: Tensor, unit: bool) -> Tensor:
    """Σ_j W_ij (x_i − y_j), and the same from the columns that are anchors; two passes over a matrix and a product.

    `unit` leaves out the multiples of x_i, which the gradient of `unit_rows` takes out anyway.
    """
    mirrored = weights[:, : len(x)].T
    if len(x) == len(references):
        weights = (weights + mirrored).neg_()
        if not unit:
            weights.diagonal().sub_(weights.sum(1))  # then Σ_j W_ij (x_i − x_j) is one product
        return weights @ x
    pulled = torch.addmm(weights @ references, mirrored, x).neg_()
    return pulled if unit else pulled.addcmul_(weights.sum(1, keepdim=True) + mirrored.sum(1, keepdim=True), x)


def squared_distance_matrix(embeddings: Tensor, anchors: int | None = None, unit: bool = False) -> Tensor:
    """‖x_i − x_j‖² of the first `anchors` rows (None: of all) and all rows, (b, d) -> (a, b).

    Rows after the anchors count as constants. `unit` as of `distance_matrix`.
    """
    x = embeddings if anchors is None else embeddings[:anchors]
    return _SquaredEuclidean.apply(x, embeddings.detach(), unit)


def distance_matrix(embeddings: Tensor, anchors: int | None = None, unit: bool = False) -> Tensor:
    """√max(‖x_i − x_j‖², ε) of the first `anchors` rows (None: of all) and all rows, (b, d) -> (a, b).

    Rows after the anchors count as constants. Below a hundredth of the rows' norm distances lose digits to the
    difference ‖x‖² + ‖y‖² − 2xᵀy that they come from. `unit`: the embeddings come from `unit_rows`, so the gradient may
    differ by multiples of the rows, which costs fewer passes.
    """
    x = embeddings if anchors is None else embeddings[:anchors]
    return _Euclidean.apply(x, embeddings.detach(), unit)


def same_class(labels: Tensor, anchors: int | None = None) -> Tensor:
    """(b,) -> (a, b) bool: True where anchor and sample share a label (the anchor itself included)."""
    return labels[:anchors, None] == labels


def positives_and_negatives(labels: Tensor, anchors: int | None = None) -> tuple[Tensor, Tensor]:
    """Masks (a, b) of the samples that share the anchor's class, itself excluded, and of those that do not.

    The anchors are the first `anchors` samples; None: all of them.
    """
    negatives = labels[:anchors, None] != labels
    return (~negatives).fill_diagonal_(False), negatives
