"""FRD: a batch whose embeddings have the mean and covariance of a pool's."""

from __future__ import annotations

import numpy as np

from oodml.data._registries import register_batch_sampler
from oodml.data.samplers._pool import CandidateSampler


@register_batch_sampler("frd", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class FrechetMatching(CandidateSampler):
    """Fréchet matching: of several batches of a pool, the one at the smallest Fréchet distance to the pool.

    ‖μ_B − μ_P‖² + tr(Σ_B + Σ_P − 2(Σ_B Σ_P)^½) of the embeddings. The pool (512 pictures) is drawn as `spc` draws a
    batch, its 10 `candidates` at random by whole class groups. (The authors' code does not run: its name is wrong.)
    """

    def unlikeness(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        batches = pool[candidates]
        means, mean = batches.mean(axis=1), pool.mean(axis=0)
        factors = (batches - means[:, None]) / np.sqrt(batches.shape[1] - 1)  # Σ = FᵀF
        factor = (pool - mean) / np.sqrt(len(pool) - 1)
        products = factors @ factor.T  # whose singular values add up to tr (Σ_B Σ_P)^½
        eigenvalues = np.linalg.eigvalsh(products @ products.swapaxes(1, 2))
        roots = np.sqrt(np.maximum(eigenvalues, 0)).sum(axis=1)
        apart = np.square(means - mean).sum(axis=1)
        return apart + np.square(factors).sum(axis=(1, 2)) + np.square(factor).sum() - 2 * roots
