"""Embedding heads: what stands between pooled features and an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import nn

from oodml._errors import OodmlError

Pooling = Literal["avg", "avg+max"]


@dataclass(frozen=True)
class Head:
    """One head: `layers` linear maps (0: the pooled features as they are) with ReLU between, `dim` outputs.

    `hidden` is the width of the inner layers (the papers' auxiliary heads use their output width, the default).
    `pooling` chooses the features it reads; `test` says whether the trained embedder keeps it.
    """

    dim: int
    layers: int = 1
    hidden: int | None = None
    pooling: Pooling = "avg"
    test: bool = True

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise OodmlError(f"A head needs at least one output, got dim={self.dim}.")
        if self.layers < 0:
            raise OodmlError(f"A head has 0 or more layers, got layers={self.layers}.")
        if self.pooling not in ("avg", "avg+max"):
            raise OodmlError(f"A head's pooling is 'avg' or 'avg+max', got {self.pooling!r}.")


def make_head(head: Head, feature_dim: int) -> nn.Module:
    """The module (b, feature_dim) -> (b, head.dim)."""
    if head.layers == 0:
        if head.dim != feature_dim:
            raise OodmlError(
                f"A head without layers gives the {feature_dim} pooled features as they are, not {head.dim} numbers: "
                f"ask for dim={feature_dim}, or for at least one layer."
            )
        return nn.Identity()
    hidden = head.hidden or head.dim
    widths = [feature_dim, *[hidden] * (head.layers - 1), head.dim]
    modules: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(widths)):
        modules += [nn.ReLU(), nn.Linear(before, after)] if i else [nn.Linear(before, after)]
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)
