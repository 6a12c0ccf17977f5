"""Relational distillation: make one space relate the samples of a batch as another does (Roth et al. 2021, S2SD).

A relation is the matrix S (b, b) of cosine similarities of a batch. All functions take source and target relations
with any leading dimensions, (..., b, b), and return one number for each, (...,), so that every branch is distilled in
one call. Gradients flow into whatever is not detached by the caller.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._errors import OodmlError


def relations(embeddings: Tensor) -> Tensor:
    """Cosine similarities (b, b) of a batch, the diagonal included as in the authors' code."""
    unit = F.normalize(embeddings, dim=-1)
    return unit @ unit.mT


def row_kl(source: Tensor, target: Tensor, temperature: float) -> Tensor:
    """T²/b · Σ_i KL(softmax(target_i / T) ‖ softmax(source_i / T)): the authors' choice.

    Equation 3 as printed swaps the arguments and sums the rows, which is b times larger at the same weight.
    """
    rows = _kl(source / temperature, target / temperature)
    return temperature**2 * rows.mean(-1)


def full_kl(source: Tensor, target: Tensor, temperature: float) -> Tensor:
    """T² · KL of one softmax over all b² similarities."""
    return temperature**2 * _kl(source.flatten(-2) / temperature, target.flatten(-2) / temperature)


def mean_kl(source: Tensor, target: Tensor, temperature: float) -> Tensor:
    """T² · KL of a softmax over the b row means: how central each sample is."""
    return temperature**2 * _kl(source.mean(-1) / temperature, target.mean(-1) / temperature)


def row_cosine(source: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Mean over rows of 1 − cos(source_i, target_i)."""
    return (1 - F.cosine_similarity(source, target, dim=-1)).mean(-1)


def row_euclidean(source: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Mean over rows of ‖source_i − target_i‖."""
    squares = (source - target).square().sum(-1)
    return squares.clamp(min=1e-12).sqrt().mean(-1)


def _kl(source: Tensor, target: Tensor) -> Tensor:
    """KL(softmax(target) ‖ softmax(source)) over the last dimension."""
    log_target, log_source = torch.log_softmax(target, -1), torch.log_softmax(source, -1)
    return (log_target.exp() * (log_target - log_source)).sum(-1)


Distillation = Callable[[Tensor, Tensor, float], Tensor]
DISTILLATIONS: dict[str, Distillation] = {
    "r-kl": row_kl,
    "kl-full": full_kl,
    "kl-mean": mean_kl,
    "cosine": row_cosine,
    "euclidean": row_euclidean,
}


GAMMA = 50.0  # the weight of distillation; the papers take 5 on SOP


def check_strength(gamma: float, temperature: float) -> None:
    """Raise for a weight or a temperature that makes no sense."""
    if not temperature > 0 or not gamma >= 0:  # so that NaN is refused too
        raise OodmlError(f"Distillation needs temperature > 0 and gamma >= 0, got {temperature} and {gamma}.")


def distilled_pairs(topology: str, branches: int) -> list[tuple[int, int]]:
    """Which space learns from which, as (source, target); 0 is the base space, 1 … the branches in rising order.

    multi: the base from every branch. nested: every space from every higher one. chained: each from the next.
    """
    if topology == "multi":
        return [(0, k) for k in range(1, branches + 1)]
    if topology == "nested":
        return [(i, j) for j in range(1, branches + 1) for i in range(j)]
    return [(k - 1, k) for k in range(1, branches + 1)]


TOPOLOGIES = ("multi", "nested", "chained")
