"""The base class of losses: input checks, float32 under autocast, normalised rows, learning rates of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodml._checks import check_batch, is_whole
from oodml._errors import OodmlError
from oodml._tensors import unit_rows, without_autocast
from oodml.miners import Miner, Pairs, Triplets
from oodml.miners.base import settings_of
from oodml.miners.foreign import check_tuples

Tuples = Sequence[Tensor]  # (a, p, n), (a, p, n, n2), Triplets or Pairs


class Loss(nn.Module):
    """`loss(embeddings (b, d), labels (b,), tuples=None)` -> scalar.

    A subclass writes `compute(embeddings, labels, tuples)`. Its embeddings are checked, float32 (or float64) with
    autocast switched off, and divided by their norms if `normalise` is True: callers need not normalise them.

    `tuples` are index tensors that replace those of the miner. `normalise = False` also means that test images are
    embedded without normalisation. `num_classes`, if given, bounds the labels.
    """

    normalise: ClassVar[bool] = True

    def __init__(self, *, num_classes: int | None = None, miner: Miner | None = None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None = None) -> Tensor:
        check_batch(embeddings, labels, self.num_classes)
        with without_autocast(embeddings):
            exact = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
            return self.compute(unit_rows(exact) if self.normalise else exact, labels, tuples)

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        """The value of the loss, a scalar."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return settings_of(self)

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The trained parts with the papers' learning rates (`base_lr` if there is none) and no weight decay."""
        return param_group(list(self.parameters()), base_lr)


def param_group(parameters: list[nn.Parameter], lr: float) -> list[dict[str, Any]]:
    """One optimiser group without weight decay; an empty list if there are no parameters."""
    return [{"params": parameters, "lr": lr, "weight_decay": 0.0}] if parameters else []


def require(name: str, loss: str, value: int | None) -> int:
    """`num_classes` or `embedding_dim`, for a loss that needs it."""
    if value is None or not is_whole(value) or value < 1:
        raise OodmlError(f"The loss {loss!r} needs {name}= (a positive whole number), got {value!r}.")
    return value


class Wrapped(Loss):
    """Any other module of `(embeddings, labels)`, with the checks and the `param_groups` of this package.

    The module gets the embeddings as they are. Explicit tuples are its third argument: `Triplets` and `Pairs` as the
    plain index tensors of pytorch-metric-learning, (a, p, n) and (a1, p, a2, n), without the rows that are masked out;
    anything else as it is. Set an attribute `normalise = False` on a module that uses raw embeddings: test images are
    then embedded without normalisation.
    """

    def __init__(self, module: nn.Module, num_classes: int | None = None) -> None:
        super().__init__(num_classes=num_classes)
        self.module = module
        distance = getattr(module, "distance", None)  # of a loss of pytorch-metric-learning
        normalised = getattr(module, "normalise", getattr(distance, "normalize_embeddings", True))
        self.normalise = bool(normalised)  # type: ignore[misc]

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


def _plain(tuples: Tuples, embeddings: Tensor) -> Any:
    if not isinstance(tuples, Triplets | Pairs):
        return tuples
    found = check_tuples(tuples, embeddings)
    if isinstance(found, Triplets):
        return tuple(each[found.mask] for each in found[:3])
    masks = (found.positive_mask,) * 2 + (found.negative_mask,) * 2
    return tuple(each[mask] for each, mask in zip(found[:4], masks, strict=True))
