"""Nearest neighbours: exact Euclidean search in blocks, on the CPU or a GPU.

For a query q the gallery is ranked by ‖g‖² − 2⟨q, g⟩, which is the squared distance less ‖q‖²: one matrix product and
one partial selection for each block of queries, never a matrix of all pairs. Order of the result: by float32
distance, equal distances by gallery index; the query itself is excluded by its index, so exact copies of it count.

The rounding of the float32 product is corrected in three ways. Copies of a gallery row get the same distance. A large
common offset of all rows is subtracted first. Neighbours so close that float32 cannot resolve the difference of two
large numbers get their distance as Σ (q − g)², and a query with too many of them is searched again in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._machine import pick_device
from oodml.evaluation._search import Search, full_float32, prepare, run_in_threads
from oodml.evaluation._symmetric import SymmetricSearch

_CPU_BLOCK = 32 * 2**20  # bytes of distances per block: small enough to stay near the caches …
_LEAST_ROWS = 64  # … but not so few queries that the product becomes slow
_MOST_MEMORY = 2 * 2**30  # bytes of distances in all blocks at a time, unless the caller sets it
_INNER_PRODUCT = 0  # faiss.METRIC_INNER_PRODUCT
_INDEX_BLOCK = 4096
DIMENSIONS = (32, 64, 128, 256, 512, 1024, 2048)


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
        k: neighbours per query, at most G (or Q − 1).
        own: (Q,) the gallery row that is the query itself and must not be found; known with `gallery=None`.
        memory: bytes that a block of distances may take; None: chosen for the device.
    """
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(len(queries), k, dtype=torch.float32, device=queries.device)

    def keep(block: Block) -> None:
        indices[block.start : block.stop], distances[block.start : block.stop] = block.indices, block.distances

    search_blocks(queries, gallery, k, keep, own=own, memory=memory)
    return Neighbours(indices, distances, excludes_self=gallery is None or own is not None)


def search_blocks(
    queries: Tensor,
    gallery: Tensor | None,
    k: int,
    consume: Callable[[Block], None],
    *,
    own: Tensor | None = None,
    memory: int | None = None,
) -> None:
    """Pass the neighbours to `consume`, one block of queries at a time, with memory for block × k values.

    On the CPU, blocks run in parallel, each in one thread from product to `consume`, which avoids a barrier after
    every operation. So `consume` is called from several threads and in any order; writing to the block's own rows is
    safe.
    """
    if gallery is None:
        own = torch.arange(len(queries), device=queries.device)
    candidates = (len(queries) if gallery is None else len(gallery)) - (own is not None)
    if not 1 <= k <= candidates:
        raise OodmlError(
            f"k={k} neighbours were requested, but there are {candidates} candidates: choose k from 1 to {candidates}."
        )
    others = None if gallery is None else gallery.detach().to(queries.device).float()
    with torch.no_grad(), full_float32(queries.device):
        q, g = _shift_both(queries.detach().float(), others)
        search = Search(q, prepare(g), k, own)
        workers = torch.get_num_threads() if q.device.type == "cpu" else 1
        if gallery is None and SymmetricSearch.suits(search, memory or _MOST_MEMORY):
            search = SymmetricSearch(search, workers)
        rows = block_rows(len(g), k, q.device, workers, memory)

        def run(start: int) -> None:
            stop = min(start + rows, len(q))
            consume(Block(start, stop, *search.block(start, stop)))

        starts = range(0, len(q), rows)
        if min(workers, len(starts)) < 2:
            for start in starts:
                run(start)
        else:
            run_in_threads(run, starts, workers)


def block_rows(candidates: int, k: int, device: torch.device, workers: int, memory: int | None) -> int:
    """Queries per block, so that the distances and the selection of all workers' blocks stay within `memory` bytes."""
    one = 4 * candidates + 24 * k
    most = (memory or _MOST_MEMORY) // workers // one
    wanted = most if memory or device.type != "cpu" else max(_LEAST_ROWS, _CPU_BLOCK // one)
    return max(1, min(wanted, most))


def _shift_both(queries: Tensor, gallery: Tensor | None) -> tuple[Tensor, Tensor]:
    """Subtract a large common offset from both sets, so that ‖g‖² is not much larger than the distances.

    The offset is the mean rounded to a power of two, 4 to 8 times the spread of the data: sets without a large offset
    are unchanged, subtracting a large one is exact, and whole numbers stay whole, so that ties remain.
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


def index_blocks(index: Any, queries: Tensor, k: int, rows: int, excludes_self: bool) -> Iterator[Block]:
    """Neighbours from a faiss `index`, block by block; places that it leaves empty have index −1, distance infinite.

    Args:
        index: anything with faiss's `ntotal`, `d` and `search(x, k)`; entry i must be gallery row i.
        rows: the size of the gallery; excludes_self: entry i is query i and is not its neighbour.
    """
    held, wanted = (getattr(index, "ntotal", None), getattr(index, "d", None)), (rows, queries.shape[1])
    if held != wanted:
        raise OodmlError(f"The index holds {held[0]} × {held[1]} numbers; expected {rows} × {wanted[1]}.")
    similar = getattr(index, "metric_type", 1) == _INNER_PRODUCT
    for start in range(0, len(queries), _INDEX_BLOCK):
        block = queries[start : start + _INDEX_BLOCK]
        found, where = index.search(np.ascontiguousarray(block.cpu().numpy(), np.float32), k + excludes_self)
        if excludes_self:
            own = where == np.arange(start, start + len(block))[:, None]
            own[~own.any(1), -1] = True  # an index that missed the query itself: drop the last instead
            keep = np.argsort(own, axis=1, kind="stable")[:, :k]
            found, where = np.take_along_axis(found, keep, 1), np.take_along_axis(where, keep, 1)
        # On unit vectors ‖q − g‖² = 2 − 2⟨q, g⟩; faiss returns squared distances otherwise.
        squared = np.where(where < 0, np.inf, 2 - 2 * found if similar else found)
        distances = torch.from_numpy(np.sqrt(np.maximum(squared, 0)).astype(np.float32)).to(queries.device)
        yield Block(start, start + len(block), torch.from_numpy(where).to(queries.device), distances)


def retrieval_seconds(
    dims: Sequence[int] = DIMENSIONS, images: int = 250_000, device: str = "cpu", repeats: int = 3, seed: int = 0
) -> dict[int, float]:
    """Seconds to find the nearest neighbour of each of `images` random embeddings, by size; best of `repeats`.

    The cost of embedding size at search time (S2SD, table 3). The paper uses faiss; this is oodml's exact search.
    """
    found, place = {}, pick_device(device)
    for dim in dims:
        generator = torch.Generator().manual_seed(seed)
        embeddings = torch.nn.functional.normalize(torch.randn(images, dim, generator=generator), dim=-1).to(place)
        find_neighbours(embeddings[:1000], k=1)  # warm-up
        found[dim] = min(_timed(embeddings) for _ in range(repeats))
    return found


def _timed(embeddings: torch.Tensor) -> float:
    began = time.perf_counter()
    find_neighbours(embeddings, k=1)
    if embeddings.is_cuda:
        torch.cuda.synchronize(embeddings.device)
    return time.perf_counter() - began
