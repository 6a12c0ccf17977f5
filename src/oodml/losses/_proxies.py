"""What the objectives with learnable class vectors (proxies, centres) share."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml.losses._base import Loss, Tuples, param_group, require
from oodml.miners._checks import require_positive
from oodml.miners._distances import unit_rows

Init = Literal["uniform", "normal", "kaiming"]


class PaperRate(float):
    """A default learning rate: the papers', beside a model that learns at 1e-5. A rate of the user's is a plain number.

    A number still, so that records, tables and `oodml methods` take it as any other. Whoever trains a model that learns
    faster can tell it by its type, and lift it: proxies at the papers' 1e-5 would then stand still.
    """


def initial_proxies(count: int, dim: int, init: Init, generator: torch.Generator | None) -> Tensor:
    """`count` vectors of `dim` numbers; a given generator is the only source of randomness.

    Every objective here divides its proxies by their norm, so the distribution only sets how far one optimiser step
    turns them: "uniform" on ±1/√d (norm .58), "normal" N(0, 1)/8 (norm √d/8), "kaiming" N(0, 2/count).
    """
    device = None if generator is None else generator.device
    if init == "uniform":
        return (2 * torch.rand(count, dim, generator=generator, device=device) - 1) / math.sqrt(dim)
    scales = {"normal": 1 / 8, "kaiming": math.sqrt(2 / count)}
    if not isinstance(init, str) or init not in scales:
        raise OodmlError(f"init must be 'uniform', 'normal' or 'kaiming', got {init!r}.")
    return torch.randn(count, dim, generator=generator, device=device) * scales[init]


class ProxyLoss(Loss):
    """An objective that compares each embedding with learnable vectors, `per_class` for each class.

    A subclass writes `proxy_loss(cosines, labels)`, the cosines (b, C·per_class) of embeddings and proxies.

    `lr` is the learning rate of the proxies; its default in every subclass is the papers', a `PaperRate`.
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
            raise OodmlError(f"The loss {name!r} tells classes apart and needs num_classes= of at least 2, got 1.")
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
        value, penalty = self.proxy_loss(embeddings @ proxies.T, labels.long()), self.penalty(proxies)
        return value if penalty is None else value + penalty

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def penalty(self, proxies: Tensor) -> Tensor | None:
        """A term on the unit proxies alone."""
        return None

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        # A plain number: an optimiser saves it, and `torch.load` refuses types that it does not know.
        return param_group(list(self.parameters()), float(self.lr))
