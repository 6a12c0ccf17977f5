"""The one neighbour engine: exact Euclidean search in blocks, on the CPU or a GPU.

For a query q the gallery is ranked by ‖g‖² − 2⟨q, g⟩, which is the squared distance less ‖q‖²: one matrix product and
one partial selection for each block of queries, never a matrix of all pairs. Order of the result: by float32
distance, equal distances by gallery index; the query itself is excluded by its index, so exact copies of it count.

Three things keep the float32 product honest. Copies of a gallery row get one and the same distance whatever the
rounding inside the product. A common offset of all rows, which would drown the differences, is taken off first.
Queries whose nearest neighbour is so close that float32 cannot resolve the difference of two large numbers are
searched again in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.evaluation._select import smallest, smallest_stable

# A squared distance below this share of ‖q‖² + ‖g‖² has lost more than three of float32's seven digits.
_UNRESOLVED = 1e-3
_ZERO64 = 1e-14  # the same, for float64: below it two float32 rows are equal
_CPU_BLOCK = 32 * 2**20  # bytes of distances a block: small enough to stay near the caches …
_LEAST_ROWS = 64  # … but not so few queries that the product becomes slow
_CPU_COLUMNS = 4096  # gallery rows a product: its result stays in the second-level cache
_GPU_BLOCK = 2 * 2**30


@dataclass(frozen=True)
class Neighbours:
    """The result of a search, nearest first; metrics, galleries and re-ranking read it.

    Attributes:
        indices: (Q, K) int64, rows of the gallery.
        distances: (Q, K) float32, Euclidean.
        excludes_self: queries and gallery are the same set, and no query is its own neighbour.
        exact: every distance was compared; False for an approximate index.
    """

    indices: Tensor
    distances: Tensor
    excludes_self: bool
    exact: bool = True

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def k(self) -> int:
        return self.indices.shape[1]


class Block(NamedTuple):
    """Neighbours of the queries start … stop−1."""

    start: int
    stop: int
    indices: Tensor
    distances: Tensor


class _Gallery(NamedTuple):
    """The searched rows and what every block needs of them."""

    rows: Tensor  # (G, d)
    norms: Tensor  # (G,) squared
    copies: Tensor  # columns that repeat an earlier row …
    originals: Tensor  # … and the first row each of them repeats

    def double(self) -> _Gallery:
        rows = self.rows.double()
        return _Gallery(rows, rows.square().sum(1), self.copies, self.originals)


def find_neighbours(
    queries: Tensor,
    gallery: Tensor | None = None,
    k: int = 100,
    *,
    own: Tensor | None = None,
    memory: int | None = None,
) -> Neighbours:
    """The k nearest gallery rows of every query (`gallery=None`: of the other queries), exact.

    Args:
        queries: (Q, d) float tensor; the search runs on its device.
        gallery: (G, d), or None to search the queries among themselves, each without itself.
        k: neighbours a query, at most G (or Q − 1).
        own: (Q,) the gallery row that is the query itself and must not be found; with `gallery=None` it is known.
        memory: bytes a block of distances may take; None chooses for the device.
    """
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(len(queries), k, dtype=torch.float32, device=queries.device)
    for start, stop, where, far in search_blocks(queries, gallery, k, own=own, memory=memory):
        indices[start:stop], distances[start:stop] = where, far
    return Neighbours(indices, distances, excludes_self=gallery is None or own is not None)


def search_blocks(
    queries: Tensor, gallery: Tensor | None, k: int, *, own: Tensor | None = None, memory: int | None = None
) -> Iterator[Block]:
    """Neighbours block by block, in the order of the queries: what `find_neighbours` joins, at block × k memory."""
    if gallery is None:
        own = torch.arange(len(queries), device=queries.device)
    candidates = (len(queries) if gallery is None else len(gallery)) - (own is not None)
    if not 1 <= k <= candidates:
        raise OodmlError(
            f"k={k} neighbours were asked for, but there are {candidates} candidates: choose 1 ≤ k ≤ that."
        )
    with torch.no_grad():
        q, g = _shift_both(queries.float(), None if gallery is None else gallery.to(queries.device).float())
        rows = block_rows(len(g), k, q.device, memory)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            search = _Search(q, _prepare(g), k, own, pool)
            for start in range(0, len(q), rows):
                yield search.block(start, min(start + rows, len(q)))


def block_rows(candidates: int, k: int, device: torch.device, memory: int | None) -> int:
    """Queries a block, so that its distances and its selection stay within `memory` bytes."""
    one = 4 * candidates + 24 * k
    if memory is not None:
        return max(1, memory // one)
    return _GPU_BLOCK // one + 1 if device.type == "cuda" else max(_LEAST_ROWS, _CPU_BLOCK // one)


def _shift_both(queries: Tensor, gallery: Tensor | None) -> tuple[Tensor, Tensor]:
    """Take a large common offset off both sets, so that ‖g‖² does not dwarf the distances.

    The offset is the mean rounded to a power of two, 4 to 8 times the spread of the data: sets without a large offset
    stay as they are, subtracting a large one is exact, and whole numbers stay whole, and with them their ties.
    """
    base = queries if gallery is None else gallery
    mean = base.mean(0, dtype=torch.float64)
    spread = base.var(0, correction=0).mean().sqrt().double().clamp_min(torch.finfo(torch.float32).tiny)
    step = torch.exp2(spread.log2().floor() + 3)
    offset = ((mean / step).round() * step).float()
    if not bool(offset.any()):
        return queries, base
    shifted = queries - offset
    return shifted, shifted if gallery is None else gallery - offset


def _prepare(rows: Tensor) -> _Gallery:
    originals = first_copies(rows)
    copies = (originals != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
    return _Gallery(rows, rows.square().sum(1), copies, originals[copies])


def first_copies(rows: Tensor, chunk: int = 2**16) -> Tensor:
    """(N,) index of the first row equal to each row, bit for bit (but 0 = −0): found by hashing, then compared."""
    generator = torch.Generator().manual_seed(0)
    weights = (torch.randint(2**62, (rows.shape[1],), generator=generator) * 2 + 1).to(rows.device)
    hashes = torch.cat([((part + 0.0).view(torch.int32) * weights).sum(1) for part in rows.split(chunk)])
    ordered, order = hashes.sort(stable=True)
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = order[new.nonzero().flatten()[new.cumsum(0) - 1]]
    originals = torch.empty_like(order).scatter_(0, order, first)
    own = torch.arange(len(rows), device=rows.device)
    claimed = (originals != own).nonzero().flatten()
    if len(claimed):
        equal = torch.cat([(rows[part] == rows[originals[part]]).all(1) for part in claimed.split(chunk)])
        originals[claimed] = torch.where(equal, originals[claimed], claimed)
    return originals


class _Search:
    """One search: its queries, its gallery, and the buffers that blocks share."""

    def __init__(
        self, queries: Tensor, gallery: _Gallery, k: int, own: Tensor | None, pool: ThreadPoolExecutor
    ) -> None:
        self.queries, self.gallery, self.k = queries, gallery, k
        self.own, self.pool = own, pool
        self._wide: _Gallery | None = None
        self._buffer = queries.new_empty(0)

    def block(self, start: int, stop: int) -> Block:
        block = self.queries[start:stop]
        own = None if self.own is None else self.own[start:stop]
        lengths = block.square().sum(1)
        if len(self._buffer) < len(block):
            self._buffer = block.new_empty(len(block), len(self.gallery.rows))
        with full_float32(block.device):
            work = _relative_distances(block, self.gallery, own, out=self._buffer[: len(block)])
        found, columns, unsure = smallest(work, self.k, self.pool)
        squared = found.add_(lengths[:, None]).clamp_min_(0)
        scale = lengths + self.gallery.norms[columns[:, 0]]
        again = (unsure | (squared[:, 0] < _UNRESOLVED * scale)).nonzero().flatten()
        step = max(1, len(block) // 4)  # in float64, distances and their sort take four times the memory
        for rows in again.split(step) if len(again) else ():
            columns[rows], squared[rows] = self._in_float64(block[rows], None if own is None else own[rows])
        return Block(start, stop, columns, squared.sqrt_())

    def _in_float64(self, block: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """Columns and squared distances of queries that float32 cannot settle, rounded to float32 at the end."""
        self._wide = wide = self._wide or self.gallery.double()
        block = block.double()
        lengths = block.square().sum(1, keepdim=True)
        squared = _relative_distances(block, wide, own).add_(lengths)
        squared[squared < _ZERO64 * (wide.norms + lengths)] = 0
        found, columns = smallest_stable(squared.float(), self.k)
        return columns, found


def _relative_distances(block: Tensor, target: _Gallery, own: Tensor | None, out: Tensor | None = None) -> Tensor:
    """‖g‖² − 2⟨q, g⟩ for a block of queries, (B, G); infinite for a query itself, equal for copies of a row."""
    work = block.new_empty(len(block), len(target.rows)) if out is None else out
    tile = _CPU_COLUMNS if block.device.type == "cpu" else len(target.rows)
    for norms, rows, part in zip(*(each.split(tile) for each in (target.norms, target.rows, work.T)), strict=True):
        torch.addmm(norms, block, rows.T, alpha=-2, out=part.T)
    if len(target.copies):
        work[:, target.copies] = work[:, target.originals]
    if own is not None:
        work[torch.arange(len(block), device=block.device), own] = torch.inf
    return work


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Float32 products in float32: no TF32, no bfloat16, no autocast, whatever the program around has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
