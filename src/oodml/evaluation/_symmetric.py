"""The search of a set within itself on the CPU: every distance is computed once and used for both of its rows.

The product is most of the cost of an exact search, and within one set half of it is redundant. So tiles above the
diagonal are computed, and each is read by rows and by columns. Which entries of a tile are candidates is decided by a
bound for each row, set beforehand from the distances to a random sample of the set: high enough that almost surely k
neighbours are below it, low enough that few others are. Entries below are collected as sortable keys. A row whose
bound was wrong is searched again in full, so the result is exact. `benchmarks/evaluation.py --shortcuts` shows what
it saves in whole evaluations.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from oodml.evaluation._search import Search, run_in_threads
from oodml.evaluation._select import LARGEST_KEY, unpack

_TILE = (1024, 512)  # rows and columns of a product: two powers of two, whose distances stay near the caches
_SAMPLED = 20  # the bounds come from one row in 20
_BOUND_ROWS = 256
_LEAST_SHARE = 24  # rows for each neighbour wanted: below it, collecting costs more than the product saves


class SymmetricSearch(Search):
    """A `Search` that collects its candidates from shared tiles when it is made."""

    @staticmethod
    def suits(search: Search, memory: int) -> bool:
        """Whether it is exact (no copies among the rows, whose distances must be equal) and within `memory` bytes."""
        n = len(search.queries)
        return (
            search.queries.device.type == "cpu"
            and not len(search.gallery.copies)
            and n >= max(2 * max(_TILE), _LEAST_SHARE * search.reach)
            and 8 * n * _capacity(n, search.reach) <= memory
        )

    def __init__(self, search: Search, workers: int) -> None:
        super().__init__(search.queries, search.gallery, search.k, search.own)
        n, self._lock = len(self.queries), threading.Lock()
        self._bounds = np.empty(n, np.float32)
        self._sample = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: _sample_size(n)].sort().values
        self._sampled_columns = self.queries[self._sample].T.contiguous()
        self._keys = np.empty((n, _capacity(n, self.reach)), np.int64)
        self._counts = np.zeros(n, np.int64)
        run_in_threads(self._set_bounds, range(0, n, _BOUND_ROWS), workers)
        rows, columns = _TILE
        tiles = [(i, j) for i in range(0, n, rows) for j in range(i // columns * columns, n, columns)]
        run_in_threads(self._collect, tiles, workers)

    def _nearest(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        counts = self._counts[start:stop]
        keys = self._keys[start:stop, : min(counts.max(), self._keys.shape[1])]
        keys[np.arange(keys.shape[1]) >= counts[:, None]] = LARGEST_KEY
        keys.sort(axis=1)
        wrong = torch.from_numpy((counts < self.reach) | (counts > self._keys.shape[1])).nonzero().flatten()
        if keys.shape[1] < self.reach:  # then every row is wrong
            return super()._nearest(start, stop)
        squared, columns = (torch.from_numpy(each) for each in unpack(keys[:, : self.reach]))
        unsure = torch.zeros(len(counts), dtype=torch.bool)
        if len(wrong):
            squared[wrong], columns[wrong], unsure[wrong] = self._nearest_of(start + wrong)
        return squared, columns, unsure

    def _set_bounds(self, start: int) -> None:
        at = slice(start, start + _BOUND_ROWS)
        norms = self.gallery.norms
        found = torch.addmm(norms[self._sample], self.queries[at], self._sampled_columns, alpha=-2)
        place = _bound_place(len(self.queries), self.reach) - 1
        self._bounds[at] = np.partition(found.add_(norms[at, None]).numpy(), place, axis=1)[:, place]

    def _collect(self, tile: tuple[int, int]) -> None:
        """One tile of squared distances, read by rows and by columns."""
        (top, left), (_, width) = tile, _TILE
        rows, columns = (slice(start, start + size) for start, size in zip(tile, _TILE, strict=True))
        norms = self.gallery.norms
        block = self.queries[rows]
        squared = self._tile()[: len(block)]
        inside = squared[:, : len(norms[columns])]
        squared[:, inside.shape[1] :] = torch.inf
        torch.addmm(norms[columns], block, self.gallery.columns[:, columns], alpha=-2, out=inside)
        inside += norms[rows, None]
        if left < top + len(block):  # on the diagonal: each pair once, none with itself
            own, other = torch.arange(top, top + len(block)), torch.arange(left, left + inside.shape[1])
            inside.masked_fill_(other <= own[:, None], torch.inf)
        values = squared.numpy()
        flat = values.reshape(-1)

        found = np.flatnonzero(values <= self._bounds[rows, None])
        counts = np.diff(np.searchsorted(found, np.arange(len(block) + 1) * width))
        self._keep(rows, counts, flat[found], (found & (width - 1)) + left)

        bounds = np.full(width, -np.inf, np.float32)
        bounds[: inside.shape[1]] = self._bounds[columns]
        found = np.flatnonzero(values <= bounds)
        place = (found & (width - 1)).astype(np.uint16)
        found = found[np.argsort(place, kind="stable")]
        counts = np.bincount(place, minlength=inside.shape[1])
        self._keep(columns, counts, flat[found], found // width + top)

    def _tile(self) -> Tensor:
        """The buffer of the calling thread."""
        if getattr(self._local, "tile", None) is None:
            self._local.tile = self.queries.new_empty(_TILE)
        return self._local.tile

    def _keep(self, rows: slice, counts: np.ndarray, squared: np.ndarray, columns: np.ndarray) -> None:
        """Append candidates, sorted by row, to the keys of their rows; those beyond the capacity are only counted."""
        keys = np.maximum(squared, 0).view(np.int32).astype(np.int64)  # the bits of floats ≥ 0 count upwards
        keys <<= 32
        keys |= columns
        capacity = self._keys.shape[1]
        with self._lock:
            filled = self._counts[rows].copy()
            self._counts[rows] += counts
        first = np.arange(rows.start, rows.start + len(counts)) * capacity + filled
        position = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(keys))
        if (filled + counts).max() > capacity:
            fits = position < np.repeat(first - filled + capacity, counts)
            position, keys = position[fits], keys[fits]
        self._keys.reshape(-1)[position] = keys


def _sample_size(n: int) -> int:
    return max(1024, n // _SAMPLED)


def _bound_place(n: int, reach: int) -> int:
    """Which of a row's sampled distances bounds its `reach` nearest of n: their expected share, and a margin."""
    expected = reach * _sample_size(n) / n
    return int(expected + 3.5 * expected**0.5 + 4)


def _capacity(n: int, reach: int) -> int:
    """Candidates kept per row: those expected below its bound, and four standard deviations more."""
    place = _bound_place(n, reach)
    return int(place * n / _sample_size(n) * (1 + 4 / place**0.5)) + 1
