"""SPC-R: a class-balanced random batch with at least one positive pair."""

from __future__ import annotations

import numpy as np

from oodml._errors import OodmlError
from oodml.data._registries import register_batch_sampler
from oodml.data.samplers._base import BatchSampler


@register_batch_sampler("spc-r", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class SPCR(BatchSampler):
    """SPC-R: b − 1 class-balanced random pictures and one mate of a random member.

    A draw takes a class uniformly and a picture of it; pictures are distinct while their class has enough. The mate
    stands last. At least two classes are always present.
    """

    def __init__(
        self, labels: np.ndarray, batch_size: int = 112, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(labels, batch_size, seed, rank, world_size)
        if batch_size < 3:
            raise OodmlError(f"spc-r needs a batch of at least 3 (two classes and a mate), got {batch_size}.")
        if batch_size % world_size:
            raise OodmlError(
                f"batch_size={batch_size} cannot be shared evenly among {world_size} processes; choose a multiple."
            )

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        rows = rng.integers(len(self.index), size=self.batch_size - 1)
        if (rows == rows[0]).all():
            rows[-1] = (rows[0] + 1 + rng.integers(len(self.index) - 1)) % len(self.index)
        # A member whose class has a second picture, where there is one: its mate should not be itself.
        able = np.flatnonzero(self.index.sizes[rows] > 1)
        member = rng.choice(able) if len(able) else rng.integers(len(rows))
        rows = np.append(rows, rows[member])
        unique, which, uses = np.unique(rows, return_inverse=True, return_counts=True)
        pictures = self.index.draw(rng, unique, int(uses.max()))
        order = np.argsort(which, kind="stable")
        turn = np.empty_like(order)
        turn[order] = np.arange(len(rows)) - np.repeat(np.cumsum(uses) - uses, uses)
        return pictures[which, turn]
