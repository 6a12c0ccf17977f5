"""One block of a search: the product, the selection, and the correction of what float32 cannot resolve."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from oodml.evaluation._select import smallest, smallest_stable

# A squared distance below this share of ‖q‖² + ‖g‖² has lost more than three of float32's seven digits.
_UNRESOLVED = 1e-3
_ZERO64 = 1e-14  # the same, for float64: below it two float32 rows are equal
_SPARE = 16  # neighbours found beyond k, to detect ties across the border and to reach distances that float32 resolves
_CPU_COLUMNS = 1024  # gallery rows per product: its result stays in the second-level cache
_CELLS = 2**24  # numbers gathered at once to repair distances
T = TypeVar("T")


class Gallery(NamedTuple):
    """The searched rows and what every block needs of them."""

    rows: Tensor  # (G, d)
    columns: Tensor  # (d, G), the same: on the CPU laid out for the product
    norms: Tensor  # (G,) squared
    copies: Tensor  # columns that repeat an earlier row …
    originals: Tensor  # … and the first row each of them repeats

    def double(self) -> Gallery:
        return _gallery(self.rows.double(), self.copies, self.originals)


def _gallery(rows: Tensor, copies: Tensor, originals: Tensor) -> Gallery:
    columns = rows.T.contiguous() if rows.device.type == "cpu" else rows.T
    return Gallery(rows, columns, rows.square().sum(1), copies, originals)


def prepare(rows: Tensor) -> Gallery:
    """The gallery of these rows, its copies found."""
    originals = first_copies(rows)
    copies = (originals != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
    return _gallery(rows, copies, originals[copies])


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


class Search:
    """One search: its queries and its gallery. Blocks may run in several threads at once."""

    def __init__(self, queries: Tensor, gallery: Gallery, k: int, own: Tensor | None) -> None:
        self.queries, self.gallery, self.k, self.own = queries, gallery, k, own
        candidates = len(gallery.rows) - (own is not None)
        self.reach = min(k + _SPARE, candidates)
        self._complete = self.reach == candidates
        self._local = threading.local()  # one buffer per thread

    def block(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Columns and distances (B, k) of the queries start … stop−1."""
        block = self.queries[start:stop]
        own = None if self.own is None else self.own[start:stop]
        lengths = block.square().sum(1)
        squared, columns, unsure = self._nearest(start, stop)
        close = _UNRESOLVED * (lengths + self.gallery.norms[columns[:, 0]])
        lost = unsure if self._complete else unsure | (squared[:, -1] < close)
        for rows in _chunks(((squared[:, 0] < close) & ~lost).nonzero().flatten(), len(block)):
            columns[rows], squared[rows] = self._repair(block[rows], columns[rows], squared[rows], close[rows, None])
        for rows in _chunks(lost.nonzero().flatten(), max(1, len(block) // 4)):  # float64 takes more memory
            columns[rows], squared[rows] = self._in_float64(block[rows], None if own is None else own[rows])
        return columns[:, : self.k], squared[:, : self.k].sqrt()

    def _nearest(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Squared distances and columns (B, reach) of the queries, and `unsure` (B,) as `smallest` has it."""
        return self._nearest_of(slice(start, stop))

    def _nearest_of(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = self.queries[rows]
        own = None if self.own is None else self.own[rows]
        work = _relative_distances(block, self.gallery, own, out=self._buffer(len(block)))
        found, columns, unsure = smallest(work, self.reach, self.k)
        return found.add_(block.square().sum(1, keepdim=True)).clamp_min_(0), columns, unsure

    def _buffer(self, rows: int) -> Tensor:
        if getattr(self._local, "work", None) is None or len(self._local.work) < rows:
            self._local.work = self.queries.new_empty(rows, len(self.gallery.rows))
        return self._local.work[:rows]

    @cached_property
    def _wide(self) -> Gallery:
        return self.gallery.double()

    def _repair(self, block: Tensor, columns: Tensor, squared: Tensor, close: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the difference of large numbers by Σ (q − g)² for the few neighbours that are close."""
        count = int((squared < close).sum(1).max())  # they come first
        near, value = columns[:, :count], squared[:, :count]
        step = max(1, _CELLS // (count * block.shape[1]))
        parts = zip(block.split(step), near.split(step), strict=True)
        true = torch.cat([(q[:, None] - self.gallery.rows[c]).double().square().sum(2) for q, c in parts]).float()
        value = torch.where(value < close, true, value)
        near, order = near.sort(dim=1)
        value, again = value.gather(1, order).sort(dim=1, stable=True)
        return torch.cat([near.gather(1, again), columns[:, count:]], 1), torch.cat([value, squared[:, count:]], 1)

    def _in_float64(self, block: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """Search the whole row again in float64, where even the last neighbour found is too close."""
        wide = self._wide
        block = block.double()
        lengths = block.square().sum(1, keepdim=True)
        squared = _relative_distances(block, wide, own).add_(lengths)
        squared[squared < _ZERO64 * (wide.norms + lengths)] = 0
        values = squared.float()
        found, columns, unsure = smallest(values, self.reach, self.k)
        for rows in _chunks(unsure.nonzero().flatten(), len(block)):
            found[rows], columns[rows] = smallest_stable(values[rows], self.reach)
        return columns, found


def _chunks(rows: Tensor, size: int) -> Sequence[Tensor]:
    return rows.split(size) if len(rows) else ()


def _relative_distances(block: Tensor, target: Gallery, own: Tensor | None, out: Tensor | None = None) -> Tensor:
    """‖g‖² − 2⟨q, g⟩ for a block of queries, (B, G); infinite for a query itself, equal for copies of a row."""
    work = block.new_empty(len(block), len(target.rows)) if out is None else out
    tile = _CPU_COLUMNS if block.device.type == "cpu" else len(target.rows)
    for start in range(0, len(target.rows), tile):
        at = slice(start, start + tile)
        torch.addmm(target.norms[at], block, target.columns[:, at], alpha=-2, out=work[:, at])
    if len(target.copies):
        work[:, target.copies] = work[:, target.originals]
    if own is not None:
        work[torch.arange(len(block), device=block.device), own] = torch.inf
    return work


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Compute float32 products in float32: no TF32, no bfloat16, no autocast.

    PyTorch has two interfaces to this setting and refuses to read the older one after only the newer was used; both
    are restored.
    """
    matmuls: tuple[Any, Any] = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    newer = [each.fp32_precision for each in matmuls]
    try:
        older = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    except RuntimeError:
        older = None
    _set_precision(matmuls, ["ieee", "ieee"])
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        _set_precision(matmuls, newer)


def _set_precision(matmuls: Sequence[Any], values: Sequence[str]) -> None:
    for each, value in zip(matmuls, values, strict=True):
        each.fp32_precision = value


def run_in_threads(task: Callable[[T], None], items: Iterable[T], workers: int) -> None:
    """`task(item)` for every item, in `workers` threads, whose torch operations run in one thread each.

    PyTorch's number of threads belongs to the calling thread, but setting it also changes that of new threads; it is
    restored at the end.
    """
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=_one_thread) as pool:
            list(pool.map(task, items))
    finally:
        torch.set_num_threads(before)


def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)  # like the number of threads, a setting of each thread
