"""GC: a batch that covers a pool of embeddings."""

from __future__ import annotations

import numpy as np

from oodml.data._registries import register_batch_sampler
from oodml.data.samplers._pool import PoolSampler, distances_between


@register_batch_sampler("gc", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class GreedyCoreset(PoolSampler):
    """Greedy coreset: again and again the picture farthest from all in the batch, and its class group with it.

    The pool is drawn as `spc` draws a batch, and the first group at random: max over x* in the pool of min over x in
    the batch of d(x*, x), d Euclidean between embeddings (Sinha et al. 2019). Every picture brings its group, so that
    it has a positive. (The authors' code takes positions in one pool for those in another: its batches are random.)
    """

    def choose(self, rng: np.random.Generator, embeddings: np.ndarray) -> np.ndarray:
        groups, n, dim = embeddings.shape
        distances = distances_between(embeddings.reshape(-1, dim))
        to_group = distances.reshape(groups, n, groups * n).min(axis=1)  # of every picture to the nearest of a group
        chosen = [int(rng.integers(groups))]
        uncovered = to_group[chosen[0]].copy()
        for _ in range(self.groups - 1):  # greedy: each choice depends on those before
            uncovered[n * chosen[-1] : n * (chosen[-1] + 1)] = -1  # is in the batch, whatever coincides with it
            chosen.append(int(uncovered.argmax()) // n)
            np.minimum(uncovered, to_group[chosen[-1]], out=uncovered)
        return np.array(chosen)
