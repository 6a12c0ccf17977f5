"""The base of all batch samplers: finite, seeded, resumable, split into shares for several processes.

Every batch is drawn from its own generator, seeded by (seed, epoch, number of the batch). To resume in the middle of an
epoch therefore takes two integers, and all processes draw the same batch without communication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from oodml._errors import OodmlError

_AHEAD = 16  # batches drawn at once


class ClassIndex:
    """Positions of the images, grouped by class; classes without images are left out."""

    def __init__(self, labels: np.ndarray) -> None:
        self.members = np.argsort(labels, kind="stable").astype(np.int64)
        self.classes, self.starts, self.sizes = np.unique(labels[self.members], return_index=True, return_counts=True)

    def __len__(self) -> int:
        return len(self.classes)

    def draw(self, rng: np.random.Generator, rows: np.ndarray, count: int) -> np.ndarray:
        """`count` images of every class in `rows`: (len(rows), count) positions.

        They are distinct while the class has enough of them; then the same order starts again: any `n` neighbours in a
        row are distinct in a class of at least `n` images, and no image is used two times more often than another.
        """
        sizes = self.sizes[rows]
        order = _distinct(rng, sizes, min(count, int(sizes.max())))
        turns = np.arange(count) % sizes[:, None]
        return self.members[self.starts[rows][:, None] + np.take_along_axis(order, turns, axis=1)]


def _distinct(rng: np.random.Generator, sizes: np.ndarray, count: int) -> np.ndarray:
    """For every size m: the first min(count, m) numbers of a random permutation of range(m).

    Floyd's algorithm (a uniform subset in `count` steps, whatever m) on all rows at once, then a shuffle of each row.
    The rest of a row is unused.
    """
    wanted = np.minimum(sizes, count)
    chosen = np.full((len(sizes), count), -1, dtype=np.int64)
    last = (sizes - wanted)[:, None] + np.arange(count)  # the step's largest candidate; beyond a row's end: unused
    drawn = (rng.random((len(sizes), count)) * (last + 1)).astype(np.int64)
    for step in range(count):
        taken = (chosen[:, :step] == drawn[:, step, None]).any(axis=1)
        chosen[:, step] = np.where(taken, last[:, step], drawn[:, step])
    keys = rng.random(chosen.shape)
    keys[np.arange(count) >= wanted[:, None]] = np.inf
    return np.take_along_axis(chosen, np.argsort(keys, axis=1), axis=1)


class BatchSampler(ABC):
    """A finite iterable of batches: int64 positions in `labels`. `len` is ⌊N / batch size⌋, at least one.

    Iteration resumes where it stopped; after the end of an epoch the next one begins. `set_epoch` chooses one. `update`
    gives new embeddings to the samplers that use them; the others ignore it.
    """

    notes: tuple[str, ...] = ()
    uses_embeddings: bool = False  # True: `update` changes what is drawn, so batches are drawn one by one

    def __init__(self, labels: np.ndarray, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        labels = np.asarray(labels)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise OodmlError(f"Labels must be a flat array of integers, got shape {labels.shape}, {labels.dtype}.")
        if batch_size < 2:
            raise OodmlError(f"A batch needs at least two images, got batch_size={batch_size}.")
        if seed < 0:
            raise OodmlError(f"seed must be 0 or a positive whole number, got {seed}.")
        if not 0 <= rank < world_size:
            raise OodmlError(f"rank must be between 0 and world_size - 1 = {world_size - 1}, got {rank}.")
        self.index = ClassIndex(labels)
        if len(self.index) < 2:
            raise OodmlError(
                f"A batch sampler needs at least two classes, or there are no negatives; got {len(self.index)}."
            )
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self._length = max(1, len(labels) // batch_size)
        self.epoch = 0
        self.position = 0  # the next batch of this epoch

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """The whole batch, before it is shared among processes."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[np.ndarray]:
        ahead: list[np.ndarray] = []
        first: tuple[int, int] | None = None  # epoch and position of the first batch in `ahead`
        while self.position < len(self):
            if not ahead or first != (self.epoch, self.position):
                ahead = self._draw_ahead()
            batch = ahead.pop(0)
            self.position += 1  # before the step: a checkpoint written after it resumes with the next batch
            first = self.epoch, self.position
            share = len(batch) // self.world_size
            yield batch[self.rank * share : (self.rank + 1) * share]
        self.epoch, self.position = self.epoch + 1, 0

    def _draw_ahead(self) -> list[np.ndarray]:
        """The next batches of this epoch. Drawn one by one, between two steps of a network, each takes five times as
        long, because the processor's caches hold other data."""
        count = 1 if self.uses_embeddings else _AHEAD
        numbers = range(self.position, min(self.position + count, len(self)))
        return [self.draw(np.random.default_rng((self.seed, self.epoch, number))) for number in numbers]

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`; a sampler that was resumed inside it keeps its position."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def update(self, indices: np.ndarray, embeddings: np.ndarray) -> None:  # noqa: B027 - most samplers use no embeddings
        """New embeddings of some images; only samplers with `uses_embeddings` use them."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key in ("seed", "batch_size"):
            if state[key] != getattr(self, key):
                raise OodmlError(
                    f"The saved sampler had {key}={state[key]}, this one has {getattr(self, key)}: it would draw other "
                    f"batches. Resume with the same {key}."
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
