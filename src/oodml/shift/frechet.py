"""Fréchet distance of two sets of features: the "FID" of the ooDML paper (Eq. 1), for any backbone.

    d(X₁, X₂) = ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½),     Σ with n − 1

The usual route takes the square root of a D × D matrix that is neither symmetric nor, for fewer samples than
dimensions, invertible: 10 s at D = 2,048, and complex numbers to throw away. Only the trace of the root is wanted.
Write Σᵢ = FᵢᵀFᵢ with any factor Fᵢ (the centred rows over √(n − 1) are one). Σ₁Σ₂ = F₁ᵀ(F₁F₂ᵀ)F₂ has the non-zero
eigenvalues of (F₁F₂ᵀ)(F₁F₂ᵀ)ᵀ, hence

    tr (Σ₁ Σ₂)^½ = ‖F₁ F₂ᵀ‖_*  (sum of singular values) = tr (F₁ Σ₂ F₁ᵀ)^½,

real and non-negative by construction, and an n₁ × n₂ matrix for few samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import lapack

from oodml._machine import one_thread_if
from oodml.shift._features import feature_rows, same_width

# Up to here singular values are cheap; above, eigenvalues of the squared matrix take a sixth of the time and lose
# about 1e-8 of the largest singular value, far below the 1e-4 that is promised.
SVD_LIMIT = 512
_BLOCK = 8192  # rows converted to float64 at a time


def fid(a: Any, b: Any) -> float:
    """Fréchet distance of two feature arrays.

    Args:
        a, b: (N₁, D) and (N₂, D) features, one row per image (or class mean); at least two rows each.

    Returns:
        ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½) ≥ 0, computed in float64, symmetric, 0 for equal sets.

    The value depends on the backbone and falls with the number of samples: compare sets of one size, or use
    `kid`, which is unbiased. Paper: Heusel et al. 2017; as a measure of shift, Milbich et al. 2021, Eq. 1.
    """
    a = feature_rows(a, "The first set", at_least=2)
    b = feature_rows(b, "The second set", at_least=2)
    same_width(a, b)
    if a.shape == b.shape and np.array_equal(a, b):
        return 0.0
    with one_thread_if(max(min(a.shape), min(b.shape)) <= SVD_LIMIT):
        return frechet(Gaussian.of_rows(a), Gaussian.of_rows(b))


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of a set: the covariance as such (D × D), or as a factor F with Σ = FᵀF."""

    mean: np.ndarray
    factor: np.ndarray | None = None
    covariance: np.ndarray | None = None

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> Gaussian:
        """Summarise (N, D) rows; `N ≥ 2`."""
        n, dims = rows.shape
        mean = rows.mean(axis=0, dtype=np.float64)
        if n > max(dims, SVD_LIMIT) and dims > SVD_LIMIT:
            covariance = np.zeros((dims, dims))
            for start in range(0, n, _BLOCK):
                centred = rows[start : start + _BLOCK] - mean
                covariance += centred.T @ centred
            return cls(mean, covariance=covariance / (n - 1))
        factor = (rows - mean) / np.sqrt(n - 1)
        # F = QR: R is a smaller factor of the same covariance, without squaring its condition number.
        return cls(mean, factor=triangle(factor) if n > dims else factor)

    @property
    def trace(self) -> float:
        if self.factor is not None:
            return float(np.vdot(self.factor, self.factor))
        assert self.covariance is not None
        return float(np.trace(self.covariance))


def triangle(matrix: np.ndarray) -> np.ndarray:
    """R of `matrix` = QR: min(n, D) rows with the inner products of all columns kept, RᵀR = MᵀM."""
    return np.asarray(np.linalg.qr(matrix, mode="r"))


def frechet(a: Gaussian, b: Gaussian) -> float:
    """Squared Fréchet (2-Wasserstein) distance of two Gaussians; never negative."""
    apart = a.mean - b.mean
    return max(0.0, float(apart @ apart) + a.trace + b.trace - 2 * root_trace(a, b))


def root_trace(a: Gaussian, b: Gaussian) -> float:
    """tr (Σ₁ Σ₂)^½."""
    if a.factor is None and b.factor is not None:
        a, b = b, a
    if a.factor is not None and b.factor is not None:
        return _nuclear_norm(a.factor @ b.factor.T)
    factor = a.factor if a.factor is not None else _semidefinite_factor(a.covariance)
    return _sum_of_roots(factor @ b.covariance @ factor.T)


def _nuclear_norm(matrix: np.ndarray) -> float:
    if min(matrix.shape) <= SVD_LIMIT:
        return float(np.linalg.svd(matrix, compute_uv=False).sum())
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    return _sum_of_roots(matrix @ matrix.T)


def _sum_of_roots(symmetric: np.ndarray) -> float:
    """Σ √λ over the eigenvalues of a positive semi-definite matrix; those within rounding of zero count as zero."""
    with one_thread_if(True):  # its inner loop waits for memory: 0.9 s on one thread at D = 2,048, up to 30 s on two
        eigenvalues = np.linalg.eigvalsh(symmetric)
    noise = len(eigenvalues) * np.finfo(np.float64).eps * eigenvalues.max(initial=0.0)  # none: Σ is zero
    return float(np.sqrt(eigenvalues[eigenvalues > noise]).sum())


def _semidefinite_factor(covariance: np.ndarray | None) -> np.ndarray:
    """F (r × D) with FᵀF = Σ, by Cholesky with pivots: Σ may be singular (a feature that is always 0)."""
    assert covariance is not None
    with one_thread_if(True):
        upper, pivots, rank, _ = lapack.dpstrf(covariance, lower=0)
    factor = np.empty((rank, len(covariance)))
    factor[:, pivots - 1] = np.triu(upper[:rank])
    return factor
