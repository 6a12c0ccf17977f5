"""Adversarial decorrelation of embeddings (Milbich et al. 2020, Sharing Matters, eq. 2 and 3; DiVA).

A regressor is trained to predict one embedding from another; reversed gradients train the embeddings against it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAPERS_DIM = 128  # of each embedding, for which the papers give their weights


class _Reversed(torch.autograd.Function):
    """x forwards, −g backwards."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reverse(x: Tensor) -> Tensor:
    """The same values; the gradient has the opposite sign."""
    return _Reversed.apply(x)


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """r = mean over samples and dimensions of (x̂_is · ŷ_is)², rows (b, d) brought to unit length; 1/d² at random."""
    return (F.normalize(x, dim=1) * F.normalize(y, dim=1)).square().mean()


def make_regressor(dim: int, hidden: int) -> nn.Sequential:
    """p: two linear layers with ReLU between, (b, dim) -> (b, dim)."""
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))


def predicted_correlation(regressor: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """r(R(target), p(R(source))): minimising −r trains p to predict `target`, and both embeddings to be unpredictable.

    p's output is brought to unit length, else r would have no upper bound.
    """
    return correlation(reverse(target), regressor(F.normalize(reverse(source), dim=1)))


def scaled_weight(papers: float, dim: int) -> float:
    """The papers' weight of r for embeddings of another size: r falls as 1/dim², so the weight grows as dim²."""
    return papers * (dim / PAPERS_DIM) ** 2
