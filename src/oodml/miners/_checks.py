"""Checks of hyperparameters: a senseless number must not train for days."""

from __future__ import annotations

import math
from typing import Any

import torch

from oodml._errors import OodmlError


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


def is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | torch.Tensor)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers is none of the first
        return False
