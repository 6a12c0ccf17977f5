"""The base class of losses that compare embeddings with trained vectors of each class (proxies, centres)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oodml._checks import require_positive
from oodml._errors import OodmlError
from oodml._tensors import unit_rows
from oodml.losses.base import Loss, Tuples, param_group, require

Init = Literal["uniform", "normal", "kaiming"]


class PaperRate(float):
    """A default learning rate from a paper, for a model trained at 1e-5. A rate that the user gives is a plain number.

    Training lifts a `PaperRate` to the model's own rate if that is higher.
    """


def initial_proxies(count: int, dim: int, init: Init, generator: torch.Generator | None) -> Tensor:
    """`count` vectors of `dim` numbers; a given generator is the only source of randomness.

    Losses divide proxies by their norms, so the distribution only sets how far one optimiser step turns them: "uniform"
    on ±1/√d (norm 0.58), "normal" N(0, 1)/8 (norm √d/8), "kaiming" N(0, 2/count).
    """
    device = None if generator is None else generator.device
    if init == "uniform":
        return (2 * torch.rand(count, dim, generator=generator, device=device) - 1) / math.sqrt(dim)
    scales = {"normal": 1 / 8, "kaiming": math.sqrt(2 / count)}
    if not isinstance(init, str) or init not in scales:
        raise OodmlError(f"init must be 'uniform', 'normal' or 'kaiming', got {init!r}.")
    return torch.randn(count, dim, generator=generator, device=device) * scales[init]


class ProxyLoss(Loss):
    """A loss that compares each embedding with `per_class` trained vectors (proxies) of each class.

    A subclass writes `proxy_loss(cosines, labels)`, the cosines (b, C·per_class) of embeddings and proxies.
    `lr` is the learning rate of the proxies.
    """

    def __init__(
        self,
        name: str,
        num_classes: int | None,
        embedding_dim: int | None,
        generator: torch.Generator | None,
        *,
        lr: float,
        init: Init,
        per_class: int = 1,
    ) -> None:
        classes = require("num_classes", name, num_classes)
        if classes < 2:
            raise OodmlError(f"The loss {name!r} compares classes and needs num_classes= of at least 2, got 1.")
        super().__init__(num_classes=classes)
        self.embedding_dim = require("embedding_dim", name, embedding_dim)
        require_positive(lr=lr)
        self.lr = lr
        self.proxies = nn.Parameter(initial_proxies(classes * per_class, self.embedding_dim, init, generator))

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        if tuples is not None:
            raise OodmlError(f"{type(self).__name__} compares with proxies and takes no tuples. Leave tuples out.")
        if embeddings.shape[1] != self.embedding_dim:
            raise OodmlError(
                f"embeddings have {embeddings.shape[1]} dimensions, but {type(self).__name__} was made for "
                f"embedding_dim={self.embedding_dim}."
            )
        proxies = unit_rows(self.proxies.to(embeddings.dtype))
        return self.proxy_loss(embeddings @ proxies.T, labels.long()) + self.penalty(proxies)

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def penalty(self, proxies: Tensor) -> Tensor | float:
        """A term on the unit proxies alone."""
        return 0.0

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        # A plain float: the optimiser's state is saved, and `torch.load` rejects other types.
        return param_group(list(self.parameters()), float(self.lr))
