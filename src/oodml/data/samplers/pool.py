"""Samplers that use embeddings: they draw a large pool of images and choose the batch from it (`gc`, `frd`, `ddm`)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from oodml._errors import OodmlError
from oodml._machine import one_thread_if
from oodml.data.samplers import register_batch_sampler
from oodml.data.samplers.spc import SPC

BINS = 50  # of the histograms of ddm, as in the authors' code
_SMALL = 512  # batch size up to which several threads are slower than one


class PoolSampler(SPC):
    """Draws a large pool as `spc` draws a batch, and chooses a batch of its class groups by their embeddings.

    Every image needs an embedding (`update`) before the first batch is drawn; `oodml.train` computes all of them at the
    start of every epoch. A class may give more than one group to a batch.

    A subclass writes `choose(rng, embeddings)`.
    """

    uses_embeddings = True

    def __init__(
        self,
        labels: np.ndarray,
        batch_size: int = 112,
        samples_per_class: int = 2,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        pool: int = 512,
    ) -> None:
        super().__init__(labels, batch_size, samples_per_class, seed, rank, world_size)
        if pool < batch_size:
            raise OodmlError(f"A batch is chosen from the pool: expected pool >= batch_size={batch_size}, got {pool}.")
        self.pool_groups = max(self.groups, min(pool, len(labels)) // samples_per_class)
        self.memory = np.empty((len(labels), 0), dtype=np.float32)
        self._known = np.zeros(len(labels), dtype=bool)

    @abstractmethod
    def choose(self, rng: np.random.Generator, embeddings: np.ndarray) -> np.ndarray:
        """`self.groups` different groups of a pool, by its embeddings (groups of the pool, n, d): their numbers."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if not self._known.all():
            unknown = int((~self._known).sum())
            raise OodmlError(
                f"This sampler chooses by embeddings, and {unknown:,} of {len(self._known):,} images have none yet: "
                "call update(indices, embeddings) with those of all images before the first batch."
            )
        groups = self.draw_groups(rng, self.pool_groups)
        with one_thread_if(self.batch_size <= _SMALL):
            return groups[self.choose(rng, self.memory[groups].astype(np.float64))].reshape(-1)

    def update(self, indices: np.ndarray, embeddings: np.ndarray) -> None:
        indices, embeddings = np.asarray(indices), np.asarray(embeddings, dtype=np.float32)
        if embeddings.ndim != 2 or indices.shape != embeddings.shape[:1]:
            raise OodmlError(
                f"Expected indices (m,) and embeddings (m, d), got shapes {indices.shape} and {embeddings.shape}."
            )
        if embeddings.shape[1] != self.memory.shape[1]:  # another network: the earlier embeddings are of no use
            self.memory = np.zeros((len(self._known), embeddings.shape[1]), dtype=np.float32)
            self._known[:] = False
        self.memory[indices] = embeddings
        self._known[indices] = True

    def state_dict(self) -> dict[str, Any]:
        memory = {"memory": torch.from_numpy(self.memory), "shown": torch.from_numpy(self._known)}
        return super().state_dict() | memory

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory, self._known = state["memory"].numpy().copy(), state["shown"].numpy().copy()


class CandidateSampler(PoolSampler):
    """A pool sampler that draws several batches of the pool at random and keeps the one most similar to the whole pool.

    A subclass writes `dissimilarity(pool, candidates)`.
    """

    def __init__(
        self,
        labels: np.ndarray,
        batch_size: int = 112,
        samples_per_class: int = 2,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        pool: int = 512,
        candidates: int = 10,
    ) -> None:
        super().__init__(labels, batch_size, samples_per_class, seed, rank, world_size, pool=pool)
        if candidates < 1:
            raise OodmlError(
                f"candidates, how many batches are compared with the pool, must be at least 1; got {candidates}."
            )
        self.candidates = candidates

    @abstractmethod
    def dissimilarity(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """How different each of the candidates (c, b), rows of the pool (p, d), is from the whole pool: (c,)."""

    def choose(self, rng: np.random.Generator, embeddings: np.ndarray) -> np.ndarray:
        groups, n, dim = embeddings.shape
        drawn = rng.random((self.candidates, groups)).argsort(axis=1)[:, : self.groups]
        rows = (n * drawn[:, :, None] + np.arange(n)).reshape(self.candidates, -1)
        return drawn[self.dissimilarity(embeddings.reshape(-1, dim), rows).argmin()]


def distances_between(rows: np.ndarray) -> np.ndarray:
    """Euclidean, (p, d) -> (p, p)."""
    squares = np.square(rows).sum(axis=1)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))


@register_batch_sampler("gc", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class GreedyCoreset(PoolSampler):
    """Greedy coreset: repeatedly the image farthest from all in the batch, and its class group with it.

    The pool is drawn as `spc` draws a batch, and the first group at random: max over x* in the pool of min over x in
    the batch of d(x*, x), d Euclidean between embeddings (Sinha et al. 2019). Every image brings its group, so that
    it has a positive. (The authors' code takes positions in one pool for those in another: its batches are random.)
    """

    def choose(self, rng: np.random.Generator, embeddings: np.ndarray) -> np.ndarray:
        groups, n, dim = embeddings.shape
        distances = distances_between(embeddings.reshape(-1, dim))
        to_group = distances.reshape(groups, n, groups * n).min(axis=1)  # of every image to the nearest of a group
        chosen = [int(rng.integers(groups))]
        uncovered = to_group[chosen[0]].copy()
        for _ in range(self.groups - 1):  # greedy: each choice depends on those before
            uncovered[n * chosen[-1] : n * (chosen[-1] + 1)] = -1  # in the batch already
            chosen.append(int(uncovered.argmax()) // n)
            np.minimum(uncovered, to_group[chosen[-1]], out=uncovered)
        return np.array(chosen)


@register_batch_sampler("frd", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class FrechetMatching(CandidateSampler):
    """Fréchet matching: of several batches of a pool, the one at the smallest Fréchet distance to the pool.

    ‖μ_B − μ_P‖² + tr(Σ_B + Σ_P − 2(Σ_B Σ_P)^½) of the embeddings. The pool (512 images) is drawn as `spc` draws a
    batch, its 10 `candidates` at random by whole class groups. (The authors' code does not run: a name in it is wrong.)
    """

    def dissimilarity(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        batches = pool[candidates]
        means, mean = batches.mean(axis=1), pool.mean(axis=0)
        factors = (batches - means[:, None]) / np.sqrt(batches.shape[1] - 1)  # Σ = FᵀF
        factor = (pool - mean) / np.sqrt(len(pool) - 1)
        products = factors @ factor.T  # whose singular values add up to tr (Σ_B Σ_P)^½
        eigenvalues = np.linalg.eigvalsh(products @ products.swapaxes(1, 2))
        roots = np.sqrt(np.maximum(eigenvalues, 0)).sum(axis=1)
        apart = np.square(means - mean).sum(axis=1)
        return apart + np.square(factors).sum(axis=(1, 2)) + np.square(factor).sum() - 2 * roots


@register_batch_sampler("ddm", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class DistanceDistributionMatching(CandidateSampler):
    """Distance distribution matching: of several batches of a pool, the one whose distances resemble the pool's most.

    Measured by the Wasserstein distance of the normalised histograms of all pairwise distances, 50 bins from 0 to the
    largest in the pool. The pool (512 images) is drawn as `spc` draws a batch, its 10 `candidates` at random by whole
    class groups. (The authors' code adds differences of means and of standard deviations, and uses the heights of
    the bars as samples.)
    """

    def dissimilarity(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        distances = distances_between(pool)
        width = max(float(distances.max()), np.finfo(float).tiny) / BINS
        cells = np.minimum(distances / width, BINS - 1).astype(np.int64)
        of_all = cumulative_histograms(cells[None])
        of_each = cumulative_histograms(cells[candidates[:, :, None], candidates[:, None, :]])
        return width * np.abs(of_each - of_all).sum(axis=1)


def cumulative_histograms(cells: np.ndarray) -> np.ndarray:
    """Of symmetric matrices of cells, each pair once, (c, m, m) -> (c, BINS)."""
    upper = np.triu_indices(cells.shape[1], 1)
    pairs = cells[:, upper[0], upper[1]] + BINS * np.arange(len(cells))[:, None]
    counts = np.bincount(pairs.reshape(-1), minlength=BINS * len(cells)).reshape(len(cells), BINS)
    return counts.cumsum(axis=1) / pairs.shape[1]
