"""Exact selection of the k smallest entries of every row, equal entries in the order of their columns.

Neither `torch.topk` nor a partial sort says which of several equal entries it keeps. Here a value and its column are
packed into one 64-bit integer whose order is "smaller value first, then smaller column", and integers are sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SPARE = 16  # entries selected beyond k, so that ties across the border are seen
_LOW_BITS = 2**31 - 1


def smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k smallest of each row of `values` (B, N) float32: values (B, k), columns (B, k), and `unsure` (B,).

    `unsure` marks rows with more ties at the border than could be seen; `smallest_stable` settles them.
    """
    n = values.shape[1]
    reach = min(k + _SPARE, n)
    found, columns = values.topk(reach, dim=1, largest=False, sorted=False)
    found, columns = unpack(pack(found, columns).sort(dim=1).values)
    unsure = (found[:, k - 1] == found[:, -1]) & (reach < n)
    return found[:, :k], columns[:, :k], unsure


def smallest_stable(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What `smallest` returns, by a stable sort of whole rows: slow, and right whatever the ties."""
    found, columns = values.sort(dim=1, stable=True)
    return found[:, :k], columns[:, :k]


def pack(values: Tensor, columns: Tensor) -> Tensor:
    """One int64 key for each pair; keys sort like (value, column). Values are float32, columns below 2³¹."""
    bits = values.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _LOW_BITS)  # the bits of negative floats count downwards
    return (ordered.to(torch.int64) << 32) | columns


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Values and columns of `pack`ed keys."""
    ordered = (keys >> 32).to(torch.int32)
    values = (ordered ^ ((ordered >> 31) & _LOW_BITS)).view(torch.float32)
    return values, keys & (2**32 - 1)
