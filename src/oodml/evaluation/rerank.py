"""Re-ranking of the neighbours of a search, without labels.

`query-expansion` moves each query towards its nearest neighbours and searches again (α-QE: Radenović, Tolias, Chum,
TPAMI 2019). `k-reciprocal` reorders each list by how many of their mutual neighbours two items share (Zhong et al.,
CVPR 2017, with their k1 = 20, k2 = 6, λ = 0.3). A re-ranked score is not comparable with a plain one;
`evaluate` notes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from oodml._errors import unknown_name
from oodml.evaluation.neighbours import Neighbours, find_neighbours

_CELLS = 2**24  # entries of the largest temporary


def rerank(
    spec: str | Mapping[str, Any], neighbours: Neighbours, queries: Tensor, gallery: Tensor | None
) -> Neighbours:
    """Apply the re-ranking that `spec` names: "query-expansion", "k-reciprocal", or {"name": …, option: value}."""
    options = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = options.pop("name", None)
    methods: dict[Any, Callable[..., Neighbours]] = {"query-expansion": query_expansion, "k-reciprocal": k_reciprocal}
    if name not in methods:
        raise unknown_name("re-ranking", name, methods)
    method = methods[name]
    known = [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of re-ranking {name!r}:", option, known)
    return method(neighbours, queries, gallery, **options)


def query_expansion(
    neighbours: Neighbours, queries: Tensor, gallery: Tensor | None, *, k: int = 10, alpha: float = 3.0
) -> Neighbours:
    """Search again with q + Σ_{i ≤ k} max(cos(q, g_i), 0)^α g_i, scaled to the length of q."""
    target = queries if gallery is None else gallery
    k = min(k, neighbours.k)
    moved = []
    for q, near in zip(*_blocks(k * queries.shape[1], queries, neighbours.indices[:, :k]), strict=True):
        around = target[near]
        weights = torch.cosine_similarity(q[:, None], around, dim=2).clamp_min(0) ** alpha
        total = q + (weights[:, :, None] * around).sum(1)
        moved.append(torch.nn.functional.normalize(total, dim=1) * q.norm(dim=1, keepdim=True))
    own = torch.arange(len(queries), device=queries.device) if gallery is None else None
    return find_neighbours(torch.cat(moved), target, neighbours.k, own=own)


def k_reciprocal(
    neighbours: Neighbours, queries: Tensor, gallery: Tensor | None, *, k1: int = 20, k2: int = 6, weight: float = 0.3
) -> Neighbours:
    """Order each list by (1 − λ) · Jaccard distance of reciprocal neighbourhoods + λ · scaled squared distance.

    All points (queries, then gallery) take part. N(i) is the list of i's k1 nearest points with i itself in front,
    R(i) its members j that have i in N(j); R(i) grows by the half-length R(j) of each of its members of which two
    thirds lie in R(i). V_i puts exp(−d²(i, j) / max_j d²(i, j)) on the grown set, sums to one, and is averaged over
    i's k2 nearest. The distance in the result is the combined one.
    """
    points = queries if gallery is None else torch.cat([queries, gallery])
    k1 = min(k1, len(points) - 1)
    near = (neighbours if gallery is None and neighbours.k >= k1 else find_neighbours(points, None, k1)).indices[:, :k1]
    near = torch.cat([torch.arange(len(points), device=points.device)[:, None], near], 1)
    largest = _largest_squared(points)
    members, values = _neighbourhoods(points, near, largest)
    members, values = _averaged(members, values, near[:, : min(k2, k1 + 1)])
    shift = 0 if gallery is None else len(queries)
    combined = []
    for rows, listed, far in zip(
        *_blocks(
            max(len(points), neighbours.k * members.shape[1]),
            torch.arange(len(queries), device=points.device),
            neighbours.indices,
            neighbours.distances,
        ),
        strict=True,
    ):
        dense = values.new_zeros(len(rows), len(points) + 1).scatter_(1, members[rows], values[rows])
        theirs = members[listed + shift]
        mine = dense.gather(1, theirs.flatten(1)).view(theirs.shape)
        shared = torch.minimum(mine, values[listed + shift]).sum(2)  # Σ max = 2 − Σ min, as both sum to one
        combined.append((1 - weight) * (1 - shared / (2 - shared)) + weight * far.square() / largest[rows, None])
    distances, order = torch.cat(combined).sort(dim=1, stable=True)
    return Neighbours(neighbours.indices.gather(1, order), distances, neighbours.excludes_self, neighbours.exact)


def _blocks(cells_a_row: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [tensor.split(max(1, _CELLS // cells_a_row)) for tensor in tensors]


def _largest_squared(points: Tensor) -> Tensor:
    """(N,) the squared distance of each point from the one farthest from it."""
    parts = [torch.cdist(part, points).amax(1).square() for part in points.split(max(1, _CELLS // len(points)))]
    return torch.cat(parts).clamp_min(torch.finfo(points.dtype).tiny)


def _neighbourhoods(points: Tensor, near: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """V before averaging, as padded rows: members (N, S) with N for "none", and their values (N, S)."""
    n, width = near.shape
    half = near[:, : round((width - 1) / 2) + 1]
    full_mask, half_mask = _reciprocal(near), _reciprocal(half)
    members, values = [], []
    cells = width * half.shape[1] * max(width, points.shape[1])
    for i, listed, mutual in zip(*_blocks(cells, torch.arange(n, device=points.device), near, full_mask), strict=True):
        theirs, theirs_mutual = half[listed], half_mask[listed] & mutual[:, :, None]  # (B, k1+1, h)
        inside = ((theirs[..., None] == listed[:, None, None]) & mutual[:, None, None]).any(-1) & theirs_mutual
        joins = inside.sum(2) * 3 > theirs_mutual.sum(2) * 2
        grown = torch.where(theirs_mutual & joins[:, :, None], theirs, n).flatten(1)
        union = torch.cat([torch.where(mutual, listed, n), grown], 1).sort(1).values
        union[:, 1:] = torch.where(union[:, 1:] == union[:, :-1], n, union[:, 1:])
        squared = (points[i, None] - points[union.clamp_max(n - 1)]).square().sum(2)
        value = torch.where(union < n, (-squared / largest[i, None]).exp(), 0.0)
        members.append(union)
        values.append(value / value.sum(1, keepdim=True))
    return _narrow(torch.cat(members), torch.cat(values), n)


def _reciprocal(near: Tensor) -> Tensor:
    """(N, K) bool: is row i in the list of near[i, r]?"""
    own = torch.arange(len(near), device=near.device)
    parts = zip(*_blocks(near.shape[1] ** 2, near, own), strict=True)
    return torch.cat([(near[listed] == i[:, None, None]).any(2) for listed, i in parts])


def _averaged(members: Tensor, values: Tensor, nearest: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of V over each point's nearest points, as padded rows again."""
    n, k = nearest.shape
    merged, means = [], []
    for listed in _blocks(k * members.shape[1], nearest)[0]:
        ids, order = members[listed].flatten(1).sort(dim=1, stable=True)
        value = values[listed].flatten(1).gather(1, order)
        new = torch.ones_like(ids, dtype=torch.bool)
        new[:, 1:] = ids[:, 1:] != ids[:, :-1]
        place = new.cumsum(1) - 1
        merged.append(torch.full_like(ids, n).scatter_(1, place, ids))
        means.append(torch.zeros_like(value).scatter_add_(1, place, value) / k)
    return _narrow(torch.cat(merged), torch.cat(means), n)


def _narrow(members: Tensor, values: Tensor, none: int) -> tuple[Tensor, Tensor]:
    """Sort the padding to the end of each row and cut the columns that are padding everywhere."""
    members, order = members.sort(dim=1, stable=True)
    width = int((members < none).sum(1).max())
    return members[:, :width], values.gather(1, order)[:, :width]
