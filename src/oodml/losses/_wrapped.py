"""Objectives from elsewhere: any module of `(embeddings, labels)` behind this package's own interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oodml.losses._base import Loss, Tuples
from oodml.miners._base import Pairs, Triplets, check_batch, without_autocast
from oodml.miners._listed import checked


class Wrapped(Loss):
    """Any other module of `(embeddings, labels)`, given this package's checks and `param_groups`.

    The module sees the embeddings as they are and does what its own formula wants with them. Explicit tuples are handed
    on as its third argument: `Triplets` and `Pairs` as the plain index tensors that pytorch-metric-learning knows,
    (a, p, n) and (a1, p, a2, n), without the rows that are masked out; anything else as it is. An attribute
    `normalise = False` of the module says that it shapes no sphere, so that test images are embedded as they are.
    """

    def __init__(self, module: nn.Module, num_classes: int | None = None) -> None:
        super().__init__(num_classes=num_classes)
        self.module = module
        self.normalise = _normalises(module)  # type: ignore[misc]

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None = None) -> Tensor:
        check_batch(embeddings, labels, self.num_classes)
        with without_autocast(embeddings):
            exact = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
            if tuples is None:
                return self.module(exact, labels)
            return self.module(exact, labels, _plain(tuples, exact))

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        own = getattr(self.module, "param_groups", None)
        return own(base_lr) if callable(own) else super().param_groups(base_lr)


def _normalises(module: nn.Module) -> bool:
    """Whether it shapes a sphere: as it says itself, or as the distance of a loss of pytorch-metric-learning does."""
    of_distance = getattr(getattr(module, "distance", None), "normalize_embeddings", True)
    return bool(getattr(module, "normalise", of_distance))


def _plain(tuples: Tuples, embeddings: Tensor) -> Any:
    if not isinstance(tuples, Triplets | Pairs):
        return tuples
    found = checked(tuples, embeddings)
    if isinstance(found, Triplets):
        return tuple(each[found.mask] for each in found[:3])
    masks = (found.positive_mask,) * 2 + (found.negative_mask,) * 2
    return tuple(each[mask] for each, mask in zip(found[:4], masks, strict=True))
