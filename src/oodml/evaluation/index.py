"""Approximate search in an index the user built with faiss, for sets that one exact pass cannot cover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.evaluation.neighbours import Block

_INNER_PRODUCT = 0  # faiss.METRIC_INNER_PRODUCT
_BLOCK = 4096


def index_blocks(index: Any, queries: Tensor, k: int, rows: int, excludes_self: bool) -> Iterator[Block]:
    """Neighbours from `index`, block by block; a place that the index leaves empty has index −1, distance infinite.

    Args:
        index: anything with faiss's `ntotal`, `d` and `search(x, k)`; entry i must be gallery row i.
        rows: the size of the gallery; excludes_self: entry i is query i and is not its neighbour.
    """
    held, wanted = (getattr(index, "ntotal", None), getattr(index, "d", None)), (rows, queries.shape[1])
    if held != wanted:
        raise OodmlError(f"The index holds {held[0]} × {held[1]} numbers; expected the {rows} × {wanted[1]} to search.")
    similar = getattr(index, "metric_type", 1) == _INNER_PRODUCT
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK]
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
