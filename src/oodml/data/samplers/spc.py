"""`spc`: a batch of b/n classes with n images each. `spc-r`: a class-balanced random batch with a positive pair."""

from __future__ import annotations

import numpy as np

from oodml._errors import OodmlError
from oodml.data.samplers import register_batch_sampler
from oodml.data.samplers.base import BatchSampler


@register_batch_sampler("spc", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class SPC(BatchSampler):
    """SPC-n: distinct classes with n distinct images each (n = samples_per_class).

    The class groups of n images follow one another in the batch. With fewer than b/n classes every class is used, and
    then used again with other images, as evenly as possible. A class of fewer than n images repeats its images.
    (The authors' code draws both classes and images with replacement: on SOP a fifth of its pairs is one image
    twice.)
    """

    def __init__(
        self,
        labels: np.ndarray,
        batch_size: int = 112,
        samples_per_class: int = 2,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, batch_size, seed, rank, world_size)
        if samples_per_class < 1 or batch_size % samples_per_class:
            near = max(samples_per_class, 1) * max(1, round(batch_size / max(samples_per_class, 1)))
            raise OodmlError(
                f"samples_per_class={samples_per_class} does not divide batch_size={batch_size}, and every class gives "
                f"the same number of images. Try batch_size={near}."
            )
        self.samples_per_class = samples_per_class
        self.groups = batch_size // samples_per_class
        if self.groups < 2:
            raise OodmlError(
                f"batch_size={batch_size} with samples_per_class={samples_per_class} holds one class, so no negatives. "
                f"Use a batch of at least {2 * samples_per_class}."
            )
        if self.groups % world_size:
            raise OodmlError(
                f"A batch of {self.groups} class groups cannot be shared in whole groups among {world_size} processes. "
                f"Use a batch_size that {samples_per_class * world_size} divides."
            )
        if len(self.index) < self.groups:
            self.notes = (
                f"{len(self.index)} classes for {self.groups} groups of {samples_per_class}: every class is used, some "
                "more than once in a batch, with other images while there are any.",
            )

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        return self.draw_groups(rng, self.groups).reshape(-1)

    def draw_groups(self, rng: np.random.Generator, groups: int) -> np.ndarray:
        """`groups` class groups: (groups, n) positions."""
        classes, n = len(self.index), self.samples_per_class
        rounds, extra = divmod(groups, classes)
        again = rng.choice(classes, extra, replace=False)  # each class `rounds` times, these once more
        if rounds == 0:
            return self.index.draw(rng, again, n)
        every_class = rng.permutation(classes)
        images = self.index.draw(rng, every_class, (rounds + 1) * n).reshape(classes, rounds + 1, n)
        # Whole rounds first, so that a class's second group is far from its first when the batch is split into shares.
        once_more = np.flatnonzero(np.isin(every_class, again))
        whole = images[:, :rounds].transpose(1, 0, 2).reshape(-1, n)
        return np.concatenate([whole, images[once_more, rounds]])


@register_batch_sampler("spc-r", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class SPCR(BatchSampler):
    """SPC-R: b − 1 class-balanced random images, and one more of the class of a random one of them.

    A draw takes a class uniformly and an image of it; images are distinct while their class has enough. The
    additional image is the last. At least two classes are always present.
    """

    def __init__(
        self, labels: np.ndarray, batch_size: int = 112, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(labels, batch_size, seed, rank, world_size)
        if batch_size < 3:
            raise OodmlError(f"spc-r needs a batch of at least 3 (two classes and a positive), got {batch_size}.")
        if batch_size % world_size:
            raise OodmlError(
                f"batch_size={batch_size} cannot be shared evenly among {world_size} processes; choose a multiple."
            )

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        rows = rng.integers(len(self.index), size=self.batch_size - 1)
        if (rows == rows[0]).all():
            rows[-1] = (rows[0] + 1 + rng.integers(len(self.index) - 1)) % len(self.index)
        # An image whose class has a second one, if possible: the additional image should be another one.
        able = np.flatnonzero(self.index.sizes[rows] > 1)
        member = rng.choice(able) if len(able) else rng.integers(len(rows))
        rows = np.append(rows, rows[member])
        unique, which, uses = np.unique(rows, return_inverse=True, return_counts=True)
        images = self.index.draw(rng, unique, int(uses.max()))
        order = np.argsort(which, kind="stable")
        turn = np.empty_like(order)
        turn[order] = np.arange(len(rows)) - np.repeat(np.cumsum(uses) - uses, uses)
        return images[which, turn]
