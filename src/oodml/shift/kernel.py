"""Kernel distance of two sets of features (KID): an unbiased alternative to the Fréchet distance."""

from __future__ import annotations

from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.shift._features import feature_rows, same_width

_BLOCK = 2048  # rows of a kernel matrix held at a time


class KID(float):
    """A kernel distance: a float with its standard error."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float) -> KID:
        made = super().__new__(cls, value)
        made.standard_error = standard_error
        return made

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.standard_error

    def __repr__(self) -> str:
        return f"{float(self):.6g} ± {self.standard_error:.2g}"


def kid(a: Any, b: Any, *, max_rows: int | None = 4000, seed: int = 0) -> KID:
    """Unbiased squared maximum mean discrepancy with the kernel k(x, y) = (xᵀy / D + 1)³.

        MMD²ᵤ = Σ_{i≠j} k(xᵢ, xⱼ) / n(n−1) + Σ_{i≠j} k(yᵢ, yⱼ) / m(m−1) − 2 Σᵢⱼ k(xᵢ, yⱼ) / nm

    Args:
        a, b: (N₁, D) and (N₂, D) features; at least three rows each.
        max_rows: larger sets are reduced to this many rows (drawn without replacement, `seed`), because the cost
            is quadratic; None uses every row.

    Returns:
        The value as a float, with `.standard_error` by the two-sample jackknife (leave one row out). Being
        unbiased it does not depend on the number of samples, and may be slightly negative when the sets agree.

    Paper: Bińkowski et al. 2018, "Demystifying MMD GANs".
    """
    a = feature_rows(a, "The first set", at_least=3)
    b = feature_rows(b, "The second set", at_least=3)
    same_width(a, b)
    if max_rows is not None and max_rows < 3:
        raise OodmlError(f"max_rows must be at least 3 (or None for every row), got {max_rows}.")
    a, b = (_reduce(rows, max_rows, seed) for rows in (a, b))
    within_a, within_b = _other_rows_sums(a), _other_rows_sums(b)
    across_a, across_b = _kernel_sums(a, b)
    n, m = len(a), len(b)
    value = within_a.sum() / (n * (n - 1)) + within_b.sum() / (m * (m - 1)) - 2 * across_a.sum() / (n * m)
    variance = _jackknife(within_a, across_a, m) + _jackknife(within_b, across_b, n)
    return KID(float(value), float(np.sqrt(variance)))


def _reduce(rows: np.ndarray, max_rows: int | None, seed: int) -> np.ndarray:
    if max_rows is not None and len(rows) > max_rows:
        rows = rows[np.sort(np.random.default_rng(seed).choice(len(rows), max_rows, replace=False))]
    return rows.astype(np.float64)


def _kernel_sums(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σⱼ k(aᵢ, bⱼ) for every i and Σᵢ k(aᵢ, bⱼ) for every j, a block of rows at a time."""
    of_a, of_b = np.empty(len(a)), np.zeros(len(b))
    for start in range(0, len(a), _BLOCK):
        inner = a[start : start + _BLOCK] @ b.T / a.shape[1] + 1
        kernel = inner * inner * inner
        of_a[start : start + _BLOCK] = kernel.sum(axis=1)
        of_b += kernel.sum(axis=0)
    return of_a, of_b


def _other_rows_sums(a: np.ndarray) -> np.ndarray:
    """Σ_{j≠i} k(aᵢ, aⱼ) for every i."""
    return _kernel_sums(a, a)[0] - (np.einsum("ij,ij->i", a, a) / a.shape[1] + 1) ** 3


def _jackknife(within: np.ndarray, across: np.ndarray, others: int) -> float:
    """Variance that one sample adds: its rows left out one by one, from the kernel's row sums alone."""
    n = len(within)
    without_within = (within.sum() - 2 * within) / ((n - 1) * (n - 2))
    without_across = (across.sum() - across) / ((n - 1) * others)
    return (n - 1) * float(np.var(without_within - 2 * without_across))
