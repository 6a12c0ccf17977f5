"""Samplers that look at embeddings: a memory of them, and a pool of pictures whose content a batch should hold."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from oodml._blas import one_thread_if
from oodml._errors import OodmlError
from oodml.data.samplers.spc import SPC

_SMALL = 512  # batches on whose matrices several threads would only wait for each other


class PoolSampler(SPC):
    """Draws a large pool as `spc` draws a batch, and chooses a batch of its class groups by their embeddings.

    `update` shows embeddings; every picture must have been shown once before the first batch is drawn. `oodml.train`
    shows all of them at the start of every epoch. A class may give more than one group to a batch.

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
        self._shown = np.zeros(len(labels), dtype=bool)

    @abstractmethod
    def choose(self, rng: np.random.Generator, embeddings: np.ndarray) -> np.ndarray:
        """`self.groups` different groups of a pool, by its embeddings (groups of the pool, n, d): their numbers."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if not self._shown.all():
            unknown = int((~self._shown).sum())
            raise OodmlError(
                f"This sampler chooses by embeddings, and {unknown:,} of {len(self._shown):,} pictures have none yet: "
                "call update(indices, embeddings) with those of all pictures before the first batch."
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
        if embeddings.shape[1] != self.memory.shape[1]:  # another network: what was known is of no use
            self.memory = np.zeros((len(self._shown), embeddings.shape[1]), dtype=np.float32)
            self._shown[:] = False
        self.memory[indices] = embeddings
        self._shown[indices] = True

    def state_dict(self) -> dict[str, Any]:
        memory = {"memory": torch.from_numpy(self.memory), "shown": torch.from_numpy(self._shown)}
        return super().state_dict() | memory

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory, self._shown = state["memory"].numpy().copy(), state["shown"].numpy().copy()


class CandidateSampler(PoolSampler):
    """A pool sampler that draws several batches of the pool at random and keeps the one most like the whole pool.

    A subclass writes `unlikeness(pool, candidates)`.
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
    def unlikeness(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """How far each of the candidates (c, b), numbers of rows of the pool (p, d), is from it as a whole: (c,)."""

    def choose(self, rng: np.random.Generator, embeddings: np.ndarray) -> np.ndarray:
        groups, n, dim = embeddings.shape
        drawn = rng.random((self.candidates, groups)).argsort(axis=1)[:, : self.groups]
        rows = (n * drawn[:, :, None] + np.arange(n)).reshape(self.candidates, -1)
        return drawn[self.unlikeness(embeddings.reshape(-1, dim), rows).argmin()]


def distances_between(rows: np.ndarray) -> np.ndarray:
    """Euclidean, (p, d) -> (p, p)."""
    squares = np.square(rows).sum(axis=1)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))
