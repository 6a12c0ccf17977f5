"""Exact selection of the k smallest entries of every row, equal entries in the order of their columns.

Neither `torch.topk` nor a partial sort defines which of several equal entries it keeps. Here a value and its column are
packed into one 64-bit integer whose order is "smaller value first, then smaller column", and integers are sorted.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_SIGN = 31
_MAGNITUDE = 2**31 - 1
_COLUMN = 2**32 - 1
LARGEST_KEY = 2**63 - 1
_MOST_FOLDS = 64
_MINIMA_A_RESULT = 2.4  # minima to choose the bound from, for each of the k results: fewer give a loose bound


def smallest(values: Tensor, k: int, needed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k smallest of each row of `values` (B, N) float32: values (B, k), columns (B, k) and `unsure` (B,).

    `unsure` marks rows whose first `needed` places may be wrong, because they tie with entries beyond the k: this
    happens on a GPU only, and `smallest_stable` resolves it.
    """
    if values.device.type != "cpu":
        return _smallest_topk(values, k, needed)
    minima = _fold_minima(values, k)
    found, columns = _select_rows(values.numpy(), None if minima is None else minima.numpy(), k)
    return torch.from_numpy(found), torch.from_numpy(columns), torch.zeros(len(values), dtype=torch.bool)


def smallest_stable(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The result of `smallest` by a stable sort of whole rows: slow, and correct for all ties."""
    found, columns = values.sort(dim=1, stable=True)
    return found[:, :k], columns[:, :k]


def _smallest_topk(values: Tensor, k: int, needed: int) -> tuple[Tensor, Tensor, Tensor]:
    found, columns = values.topk(k, dim=1, largest=False)
    tied = (found[:, 1:] == found[:, :-1]).any(1).nonzero().flatten()
    columns[tied] = _order_ties(found[tied], columns[tied])
    return found, columns, (found[:, needed - 1] == found[:, -1]) & (k < values.shape[1])


def _order_ties(found: Tensor, columns: Tensor) -> Tensor:
    """The columns of rows whose values are sorted already, with equal values in the order of their columns."""
    bits = found.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> _SIGN) & _MAGNITUDE)
    return ((ordered.long() << 32) | columns).sort(dim=1).values & _COLUMN


def _fold_minima(values: Tensor, k: int) -> Tensor | None:
    """(B, W) minima over strided groups of columns, W ≥ 2.4 k; the k-th of them bounds the k-th smallest value.

    One pass over memory, which excludes all but about 1.3 k columns of a row. None: it would not save time.
    """
    n = values.shape[1]
    folds = min(_MOST_FOLDS, int(n / (_MINIMA_A_RESULT * k)))
    if folds < 2:
        return None
    width = n // folds
    return values[:, : width * folds].unflatten(1, (folds, width)).amin(1)


def _select_rows(values: np.ndarray, minima: np.ndarray | None, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k smallest of `values` (B, N) and their columns, in NumPy: it sorts integers with vector instructions."""
    if minima is None:
        keys = _pack(values.view(np.int32), np.arange(values.shape[1]))
    else:
        keys = _pack_below(values, np.partition(minima, k - 1, axis=1)[:, k - 1, None])
    keys.sort(axis=1)
    return unpack(keys[:, :k])


def unpack(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values and the columns that `_pack` put into the keys."""
    ordered = (keys >> 32).astype(np.int32)
    return (ordered ^ ((ordered >> _SIGN) & _MAGNITUDE)).view(np.float32), keys & _COLUMN


def _pack(bits: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """int64 keys that sort like (value, column), from the bits of float32 values and columns below 2³²."""
    keys = (bits ^ ((bits >> _SIGN) & _MAGNITUDE)).astype(np.int64)  # the bits of negative floats count downwards
    keys <<= 32
    keys |= columns
    return keys


def _pack_below(values: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Keys of the entries of each row that do not exceed its bound, (B, C), filled up with the largest key."""
    rows, n = values.shape
    flat = np.flatnonzero(values <= bound)
    counts = np.diff(np.searchsorted(flat, np.arange(rows + 1) * n))
    bits = values.reshape(-1).view(np.int32)[flat]
    flat -= np.repeat(np.arange(rows) * n, counts)
    keys = np.full((rows, counts.max()), LARGEST_KEY, np.int64)
    keys[np.arange(keys.shape[1]) < counts[:, None]] = _pack(bits, flat)
    return keys
