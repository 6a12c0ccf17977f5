"""DDM: a batch whose distances are distributed as those of a pool."""

from __future__ import annotations

import numpy as np

from oodml.data._registries import register_batch_sampler
from oodml.data.samplers._pool import CandidateSampler, distances_between

BINS = 50  # of the histograms, as in the authors' code


def cumulative_histograms(cells: np.ndarray) -> np.ndarray:
    """Of symmetric matrices of cells, each pair once, (c, m, m) -> (c, BINS)."""
    upper = np.triu_indices(cells.shape[1], 1)
    pairs = cells[:, upper[0], upper[1]] + BINS * np.arange(len(cells))[:, None]
    counts = np.bincount(pairs.reshape(-1), minlength=BINS * len(cells)).reshape(len(cells), BINS)
    return counts.cumsum(axis=1) / pairs.shape[1]


@register_batch_sampler("ddm", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class DistanceDistributionMatching(CandidateSampler):
    """Distance distribution matching: of several batches of a pool, the one whose distances are most like the pool's.

    Measured by the Wasserstein distance of the normalised histograms of all pairwise distances, 50 bins from 0 to the
    largest in the pool. The pool (512 pictures) is drawn as `spc` draws a batch, its 10 `candidates` at random by whole
    class groups. (The authors' code adds differences of means and of standard deviations, and takes the heights of
    the bars for samples.)
    """

    def unlikeness(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        distances = distances_between(pool)
        width = max(float(distances.max()), np.finfo(float).tiny) / BINS
        cells = np.minimum(distances / width, BINS - 1).astype(np.int64)
        of_all = cumulative_histograms(cells[None])
        of_each = cumulative_histograms(cells[candidates[:, :, None], candidates[:, None, :]])
        return width * np.abs(of_each - of_all).sum(axis=1)
