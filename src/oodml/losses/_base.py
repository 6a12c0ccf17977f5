"""The shell every objective shares: input checks, float32 under autocast, learning rates of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml.miners import Miner
from oodml.miners._base import check_batch, settings_of, without_autocast
from oodml.miners._checks import is_whole
from oodml.miners._distances import unit_rows

Tuples = Sequence[Tensor]  # (a, p, n), (a, p, n, n2), Triplets or Pairs


class Loss(nn.Module):
    """`loss(embeddings (b, d), labels (b,), tuples=None)` -> scalar.

    A subclass writes `compute(embeddings, labels, tuples)` and is handed float32 (or float64) embeddings, on the unit
    sphere where `normalise` is set, with autocast switched off. Embeddings need not be normalised by the caller.

    `tuples` overrides the miner with explicit index tensors. `normalise` also tells whoever embeds test images whether
    this objective shapes a sphere. One that is `scale_free` measures directions itself and is handed rows of any norm,
    which it may never need to normalise. `num_classes`, where it is set, bounds the labels.
    """

    normalise: ClassVar[bool] = True
    scale_free: ClassVar[bool] = False

    def __init__(self, *, num_classes: int | None = None, miner: Miner | None = None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None = None) -> Tensor:
        check_batch(embeddings, labels, self.num_classes)
        with without_autocast(embeddings):
            exact = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
            rows = unit_rows(exact) if self.normalise and not self.scale_free else exact
            return self.compute(rows, labels, tuples)

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        """The objective itself, on checked full-precision embeddings."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return settings_of(self)

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The learnable parts with the papers' learning rates (`base_lr` where none is given) and no weight decay."""
        return param_group(list(self.parameters()), base_lr)


def param_group(parameters: list[nn.Parameter], lr: float) -> list[dict[str, Any]]:
    """One optimiser group without weight decay; none at all where there is nothing to train."""
    return [{"params": parameters, "lr": lr, "weight_decay": 0.0}] if parameters else []


def require(name: str, loss: str, value: int | None) -> int:
    """`num_classes` or `embedding_dim`, for a loss that cannot do without."""
    if value is None or not is_whole(value) or value < 1:
        raise OodmlError(f"The loss {loss!r} needs {name}= (a positive whole number), got {value!r}.")
    return value
