"""Relational distillation: make one space relate the samples of a batch as another does (Roth et al. 2021, S2SD).

A relation is the matrix S (b, b) of cosine similarities of a batch. All functions take source and target relations
with any leading dimensions, (..., b, b), and return one number for each, (...,), so that all branches are distilled in
one call. The caller detaches what shall have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

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
    """Raise for an invalid weight or temperature."""
    if not temperature > 0 or not gamma >= 0:  # so that NaN is refused too
        raise OodmlError(f"Distillation needs temperature > 0 and gamma >= 0, got {temperature} and {gamma}.")


TOPOLOGIES = ("multi", "nested", "chained", "chained-printed")


def distilled_pairs(topology: str, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Which space learns from which, as (source, target): 0 is the base space, k the branch of the width widths[k - 1].

    multi: the base from every branch (equation 5). nested: every space from every branch that is not narrower than it,
    the base from all (equation 7). chained: every space from the next wider one, as the paper's text says.
    chained-printed: equation 8, in which every branch but the widest learns from the next narrower space, and the base
    from none. The loss divides the sum over the pairs by the number of branches in all four.
    """
    branches = range(1, len(widths) + 1)
    if topology == "multi":
        return [(0, k) for k in branches]
    if topology == "nested":
        return [
            (i, j) for j in branches for i in (0, *branches) if not i or (i != j and widths[j - 1] >= widths[i - 1])
        ]
    downwards = list(pairwise([0, *sorted(branches, key=lambda k: widths[k - 1])]))
    if topology == "chained":
        return downwards
    return [(wider, narrower) for narrower, wider in downwards[:-1]]
