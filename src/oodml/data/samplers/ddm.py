"""DDM: a batch whose distances are distributed as those of a pool."""

from __future__ import annotations

import numpy as np

from oodml._errors import OodmlError
from oodml.data._registries import register_batch_sampler
from oodml.data.samplers._pool import CandidateSampler, distances_between


@register_batch_sampler("ddm", paper="Roth et al., Revisiting Training Strategies, ICML 2020")
class DistanceDistributionMatching(CandidateSampler):
    """Distance distribution matching: of several batches of a pool, the one whose distances are most like the pool's.

    Measured by the Wasserstein distance of the normalised histograms of all pairwise distances, `bins` from 0 to the
    largest in the pool. The pool (512 pictures) is drawn as `spc` draws a batch, its 10 `candidates` at random by whole
    class groups. (The authors' code adds differences of means and of standard deviations, and takes the heights of
    the bars for samples.)
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
        bins: int = 50,
    ) -> None:
        super().__init__(
            labels, batch_size, samples_per_class, seed, rank, world_size, pool=pool, candidates=candidates
        )
        if bins < 2:
            raise OodmlError(f"A histogram needs at least 2 bins, got bins={bins}.")
        self.bins = bins

    def unlikeness(self, pool: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        distances = distances_between(pool)
        width = max(float(distances.max()), np.finfo(float).tiny) / self.bins
        cells = np.minimum(distances / width, self.bins - 1).astype(np.int64)
        of_all = self._cumulative(cells[None])
        of_each = self._cumulative(cells[candidates[:, :, None], candidates[:, None, :]])
        return width * np.abs(of_each - of_all).sum(axis=1)

    def _cumulative(self, cells: np.ndarray) -> np.ndarray:
        """Cumulative histograms of symmetric matrices of cells, each pair once, (c, m, m) -> (c, bins)."""
        upper = np.triu_indices(cells.shape[1], 1)
        pairs = cells[:, upper[0], upper[1]] + self.bins * np.arange(len(cells))[:, None]
        counts = np.bincount(pairs.reshape(-1), minlength=self.bins * len(cells)).reshape(len(cells), self.bins)
        return counts.cumsum(axis=1) / pairs.shape[1]
