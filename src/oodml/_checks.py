"""Checks of hyperparameters and of batches: wrong values are refused before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError, unknown_name

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # torch compares no other integers


def require_positive(**numbers: float) -> None:
    """Numbers that divide or scale and so must be greater than zero."""
    for name, value in numbers.items():
        if not (_is_finite(value) and value > 0):
            raise OodmlError(f"{name} must be a positive number, got {value!r}.")


def require_not_negative(**numbers: float) -> None:
    """Margins, weights of penalties."""
    for name, value in numbers.items():
        if not (_is_finite(value) and value >= 0):
            raise OodmlError(f"{name} must be a number of at least 0, got {value!r}.")


def require_finite(**numbers: float) -> None:
    for name, value in numbers.items():
        if not _is_finite(value):
            raise OodmlError(f"{name} must be a finite number, got {value!r}.")


def require_whole(least: int, **numbers: int) -> None:
    """Counts and sizes."""
    for name, value in numbers.items():
        if not is_whole(value) or value < least:
            raise OodmlError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def require_generator(generator: torch.Generator | None) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OodmlError(f"generator must be a torch.Generator or None, got {generator!r}.")


def require_choice(owner: str, valid: Collection[str], **options: Any) -> None:
    """Options of `owner` that name one of a few ways."""
    for name, value in options.items():
        if value not in valid:
            raise unknown_name(f"value of {owner}'s {name}:", value, valid)


def is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | Tensor)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):  # for example a tensor of several numbers
        return False


def check_batch(embeddings: Tensor, labels: Tensor, num_classes: int | None = None) -> None:
    """Raise for what no loss can use. Values are checked on CPU tensors only: on a GPU that would synchronise."""
    for name, value in (("embeddings", embeddings), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise OodmlError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
    if embeddings.ndim != 2 or embeddings.shape[1] < 1:
        raise OodmlError(f"embeddings must have shape (batch, dimensions), got {tuple(embeddings.shape)}.")
    if not embeddings.is_floating_point():
        raise OodmlError(f"embeddings must be floating point, got {embeddings.dtype}.")
    if labels.ndim != 1 or labels.shape[0] != embeddings.shape[0]:
        raise OodmlError(
            f"labels must have shape ({embeddings.shape[0]},), one for each row of embeddings, "
            f"got {tuple(labels.shape)}."
        )
    if labels.dtype not in _WHOLE:
        raise OodmlError(f"labels must be whole numbers (int64), got {labels.dtype}.")
    if embeddings.shape[0] < 2:
        raise OodmlError(f"embeddings must hold a batch of at least 2 samples, got {embeddings.shape[0]}.")
    if labels.device != embeddings.device:
        raise OodmlError(f"labels are on {labels.device}, embeddings on {embeddings.device}; move them to one device.")
    if embeddings.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_values(embeddings, labels, num_classes)


def _check_values(embeddings: Tensor, labels: Tensor, num_classes: int | None) -> None:
    # The norm is not finite if any number is not, and costs one pass without a temporary; it may also overflow.
    values = embeddings.detach()
    if not math.isfinite(torch.linalg.vector_norm(values).item()) and not torch.isfinite(values).all():
        raise OodmlError("embeddings contain NaN or infinite values; lower the learning rate or check the inputs.")
    if num_classes is None:
        return
    low, high = (value.item() for value in labels.aminmax())
    if low < 0 or high >= num_classes:
        raise OodmlError(
            f"labels must lie in 0..{num_classes - 1} (num_classes={num_classes}), got values from {low} to {high}."
        )
