"""Every same-class and different-class pair of a set, tile by tile: counts and order statistics without N² memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_TILE = {"cpu": 2048, "cuda": 8192}
_RADIX = 16  # bits of a distance settled in one pass over the pairs


class PairSet(NamedTuple):
    """Rows and columns sorted by class, so that same-class pairs lie in few tiles. `one_set`: each pair counts once."""

    rows: Tensor
    row_ids: Tensor
    columns: Tensor
    column_ids: Tensor
    one_set: bool
    same: int
    different: int


def pair_set(x: Tensor, ids: Tensor, gallery: Tensor | None = None, gallery_ids: Tensor | None = None) -> PairSet:
    """Unordered pairs within `x`, or all pairs of a row of `x` and a row of `gallery` (class ids shared)."""
    one_set = gallery is None or gallery_ids is None
    y, y_ids = (x, ids) if gallery is None or gallery_ids is None else (gallery, gallery_ids)
    mean = y.mean(dim=0)  # small numbers lose less in ‖x‖² + ‖y‖² − 2x·y
    classes = int(max(ids.max(), y_ids.max())) + 1
    sizes, y_sizes = torch.bincount(ids, minlength=classes), torch.bincount(y_ids, minlength=classes)
    same = int((sizes * (sizes - 1) // 2 if one_set else sizes * y_sizes).sum())
    total = len(x) * (len(x) - 1) // 2 if one_set else len(x) * len(y)
    order, y_order = torch.sort(ids, stable=True).indices, torch.sort(y_ids, stable=True).indices
    rows, row_ids = x[order] - mean, ids[order]
    columns, column_ids = (rows, row_ids) if one_set else (y[y_order] - mean, y_ids[y_order])
    return PairSet(rows, row_ids, columns, column_ids, one_set, same, total - same)


def count_below(pairs: PairSet, thresholds: Sequence[float], same: bool) -> list[int]:
    """How many pairs of one kind have a squared distance below each threshold."""
    edges = pairs.rows.new_tensor(thresholds)
    counts = torch.zeros(len(thresholds), dtype=torch.int64, device=edges.device)
    for squared in _tiles(pairs, same):
        near = squared[squared < edges.max()]
        counts += torch.stack([(near < edge).sum() for edge in edges])
    return counts.tolist()


def different_at_ranks(pairs: PairSet, ranks: Sequence[int]) -> list[float]:
    """The squared distances at 0-based `ranks` among different-class pairs in rising order; +inf past the last.

    Radix selection: positive floats are ordered like the integers that share their bits. Each pass over the pairs
    counts, for every rank still open, the next 16 bits among the distances whose higher bits are settled: two passes
    for float32, whatever N is, exact under ties.
    """
    bits = 31 if pairs.rows.dtype == torch.float32 else 63
    ranks = list(ranks)
    found = {rank: (0, rank) for rank in ranks if rank < pairs.different}  # rank → settled bits, rank within them
    while bits > 0 and found:
        shift = max(0, bits - _RADIX)
        histograms = _histograms(pairs, {prefix for prefix, _ in found.values()}, bits, shift)
        for rank, (prefix, within) in found.items():
            below = histograms[prefix].cumsum(0)
            digit = min(int(torch.searchsorted(below, within, right=True)), len(below) - 1)
            before = int(below[digit - 1]) if digit else 0
            found[rank] = ((prefix << (bits - shift)) | digit, within - before)
        bits = shift
    return [_float_of(found[rank][0], pairs.rows.dtype) if rank in found else math.inf for rank in ranks]


def _histograms(pairs: PairSet, prefixes: set[int], bits: int, shift: int) -> dict[int, Tensor]:
    """For each prefix: how often each value of the next bits occurs among distances that start with it."""
    width = 1 << (bits - shift)
    integer = torch.int32 if pairs.rows.dtype == torch.float32 else torch.int64
    counts = {prefix: torch.zeros(width, dtype=torch.int64, device=pairs.rows.device) for prefix in prefixes}
    beyond = (max(prefixes) + 1) << bits
    for squared in _tiles(pairs, same=False):
        keys = squared.view(integer).flatten()
        if beyond > torch.iinfo(integer).max:  # the first pass: every key counts, +inf above all finite ones
            counts[0] += torch.bincount(keys >> shift, minlength=width)
            continue
        keys = keys[keys < beyond]
        for prefix in prefixes:
            mine = keys[(keys >> bits) == prefix]
            counts[prefix] += torch.bincount((mine >> shift) & (width - 1), minlength=width)
    return counts


def _tiles(pairs: PairSet, same: bool) -> Iterator[Tensor]:
    """Tiles of squared distances, +inf where a pair is not of the asked kind; tiles without any are skipped."""
    side = _TILE.get(pairs.rows.device.type, 4096)
    row_norms, column_norms = pairs.rows.square().sum(dim=1), pairs.columns.square().sum(dim=1)
    row_ends, column_ends = _ends(pairs.row_ids, side), _ends(pairs.column_ids, side)
    smallest = torch.finfo(pairs.rows.dtype).tiny  # instead of 0, whose sign bit may be set
    for i, (row_first, row_last) in enumerate(row_ends):
        rows = slice(i * side, (i + 1) * side)
        for j in range(i if pairs.one_set else 0, len(column_ends)):
            column_first, column_last = column_ends[j]
            shared = row_first <= column_last and column_first <= row_last
            uniform = row_first == row_last == column_first == column_last
            if (same and not shared) or (not same and uniform):
                continue
            columns = slice(j * side, (j + 1) * side)
            squared = torch.addmm(column_norms[columns], pairs.rows[rows], pairs.columns[columns].T, alpha=-2)
            squared.add_(row_norms[rows, None]).clamp_(min=smallest)
            if shared:
                asked = (pairs.row_ids[rows, None] == pairs.column_ids[columns]) == same
                asked = asked.triu(1) if pairs.one_set and i == j else asked
                squared.masked_fill_(~asked, torch.inf)
            yield squared


def _ends(ids: Tensor, side: int) -> list[tuple[int, int]]:
    """First and last class of each tile's rows; the ids are sorted."""
    firsts, lasts = ids[::side], torch.cat([ids[side - 1 :: side], ids[-1:]])[: len(ids[::side])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _float_of(bits: int, dtype: torch.dtype) -> float:
    integer = torch.int32 if dtype == torch.float32 else torch.int64
    return float(torch.tensor(bits, dtype=integer).view(dtype))
