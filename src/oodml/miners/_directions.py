"""Distances between the directions of rows of any norm, for a CPU, where passes over the rows take most of the time.

On a GPU every pass is a launch, however small what it goes over, and these take more of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oodml.miners._autograd import first_order
from oodml.miners._distances import CLAMPED, EPSILON, SMALLEST


class BetweenDirections(NamedTuple):
    """Rows x (b, d) of any norm, and between their directions u: 1/(‖x_i‖‖x_j‖), cosines and distances, (b, b)."""

    rows: Tensor
    scale: Tensor
    cosines: Tensor
    distances: Tensor


def directions_of(x: Tensor) -> BetweenDirections:
    """√max(‖u_i − u_j‖², ε), with no pass over the rows but one product: cosines and norms are read off X Xᵀ."""
    products = x @ x.T
    squares = products.diagonal()
    overflow = not math.isfinite(squares.sum().item())
    inverse = squares.clamp_min(SMALLEST**2).rsqrt_()
    scale = torch.outer(inverse, inverse)
    cosines = products.mul_(scale)
    if overflow:  # ∞ · 0; rows too long to be squared count as 0, as `unit_rows` has them
        cosines.nan_to_num_(0.0)
    norms = cosines.diagonal()
    distances = torch.sub(norms[:, None] + norms, cosines, alpha=2).clamp_min_(EPSILON).sqrt_()
    return BetweenDirections(x, scale, cosines, distances)


def gradient_of_rows(between: BetweenDirections, weights: Tensor, factor: float = 1.0) -> Tensor:
    """Of factor · Σ_ij W_ij d_ij: with S = W/d + (W/d)ᵀ, row i is −factor · Σ_j S_ij (u_j − C_ij u_i) / ‖x_i‖."""
    x, scale, cosines, distances = between
    pulls = torch.ops.aten.threshold_backward(weights, distances, CLAMPED).div_(distances)
    pulls = pulls + pulls.T
    pulls.diagonal().sub_((pulls * cosines).sum(1))
    return torch.addmm(x, pulls.mul_(scale), x, beta=0, alpha=-factor)


class _DirectionsApart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        between = directions_of(x)
        ctx.save_for_backward(*between)
        return between.distances

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient_of_rows(BetweenDirections(*ctx.saved_tensors), gradient)


def direction_distances(x: Tensor) -> Tensor:
    """`distance_matrix` of `unit_rows`, (b, d) -> (b, b)."""
    return _DirectionsApart.apply(x)
