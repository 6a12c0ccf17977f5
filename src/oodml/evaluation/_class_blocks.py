"""Rows of many classes as a few padded blocks, so that within-class work is batched instead of looped over classes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_VALUES = 1 << 24  # numbers in one block of rows (128 MB in float64)


class ClassBlock(NamedTuple):
    """B classes of like size: their ids (B,), rows (B, W, d) float64 padded with zeros, and which rows are real."""

    classes: Tensor
    rows: Tensor
    real: Tensor


def class_blocks(x: Tensor, ids: Tensor) -> Iterator[ClassBlock]:
    """Every class once, from small to large, about `_VALUES` numbers a block (more only where one class needs it).

    In that order neighbours have like sizes, so little is padded: a block ends before sizes more than double.
    """
    sizes = torch.bincount(ids)
    by_class = torch.sort(ids, stable=True).indices
    starts = sizes.cumsum(0) - sizes
    ordered = torch.sort(sizes, stable=True)
    counts = ordered.values.tolist()
    first = 0
    while first < len(counts):
        last = _block_end(counts, first, x.shape[1])
        classes, width = ordered.indices[first:last], counts[last - 1]
        offset = torch.arange(width, device=x.device)
        real = offset < sizes[classes][:, None]
        position = torch.where(real, starts[classes][:, None] + offset, 0)
        yield ClassBlock(classes, x[by_class[position]].double() * real[..., None], real)
        first = last


def class_sums(x: Tensor, ids: Tensor, count: int) -> Tensor:
    """(C, d) float64 sums of the rows of each class, added in index order: the same on every run, also on a GPU."""
    order = torch.sort(ids, stable=True).indices
    sizes = torch.bincount(ids, minlength=count)
    return torch.nn.functional.embedding_bag(order, x.double(), sizes.cumsum(0) - sizes, mode="sum")


def _block_end(counts: list[int], first: int, dim: int) -> int:
    like = bisect_right(counts, 2 * counts[first])
    width = counts[like - 1]
    return min(like, first + max(1, _VALUES // (width * max(dim, width))))
