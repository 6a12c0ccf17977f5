"""Checks of hyperparameters."""

from __future__ import annotations

from oodml._errors import OodmlError


def require_positive(name: str, value: float) -> float:
    """A hyperparameter that divides or scales and so must be greater than zero."""
    if not value > 0:
        raise OodmlError(f"{name} must be positive, got {value}.")
    return value
