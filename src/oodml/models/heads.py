"""Embedding heads: from pooled features to an embedding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from oodml._errors import OodmlError

Pooling = str  # "avg", "avg+max", or "windows:HxW": averages over windows of the feature map, not over all of it


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
        if self.pooling not in ("avg", "avg+max") and self.window is None:
            raise OodmlError(f"A head's pooling is 'avg', 'avg+max' or 'windows:HxW', got {self.pooling!r}.")

    @property
    def window(self) -> tuple[int, int] | None:
        """Height and width of the windows of a "windows:HxW" head."""
        found = re.fullmatch(r"windows:([1-9]\d*)x([1-9]\d*)", self.pooling)
        return (int(found[1]), int(found[2])) if found else None


def make_head(head: Head, feature_dim: int) -> nn.Module:
    """The module (b, feature_dim) -> (b, head.dim)."""
    if head.layers == 0:
        if head.dim != feature_dim:
            raise OodmlError(
                f"A head without layers gives the {feature_dim} pooled features as they are, not {head.dim} numbers: "
                f"use dim={feature_dim}, or at least one layer."
            )
        return nn.Identity()
    hidden = head.hidden or head.dim
    widths = [feature_dim, *[hidden] * (head.layers - 1), head.dim]
    modules: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(widths)):
        modules += [nn.ReLU(), nn.Linear(before, after)] if i else [nn.Linear(before, after)]
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)
