"""SPC-n: a batch of b/n classes with n pictures each."""

from __future__ import annotations

import numpy as np

from oodml._errors import OodmlError
from oodml.data._registries import register_batch_sampler
from oodml.data.samplers._base import BatchSampler


@register_batch_sampler("spc", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class SPC(BatchSampler):
    """SPC-n: distinct classes with n distinct pictures each (n = samples_per_class).

    The batch lists one class group of n pictures after another. With fewer than b/n classes every class is used and
    then used again with other pictures, as evenly as possible. A class of fewer than n pictures repeats its own.
    (The authors' code draws both classes and pictures with replacement: on SOP a fifth of its pairs is one picture
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
                f"samples_per_class={samples_per_class} does not divide batch_size={batch_size}: every class gives the "
                f"same number of pictures. Try batch_size={near}."
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
                "more than once in a batch, with other pictures while there are any.",
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
        everyone = rng.permutation(classes)
        pictures = self.index.draw(rng, everyone, (rounds + 1) * n).reshape(classes, rounds + 1, n)
        # Whole rounds first, so that a class's second use stands far from its first when the batch is shared out.
        once_more = np.flatnonzero(np.isin(everyone, again))
        whole = pictures[:, :rounds].transpose(1, 0, 2).reshape(-1, n)
        return np.concatenate([whole, pictures[once_more, rounds]])
