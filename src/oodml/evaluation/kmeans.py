"""k-means (Lloyd): exact, deterministic, bounded memory, the same code on CPU and GPU.

A point belongs to the centre that maximises x·c − ‖c‖²/2, one matrix product per tile. Two facts make later iterations
cheap without changing the result: a centre whose members stayed the same does not move, and a point whose own centre
came nearer or did not move can only leave it for a centre that moved. Each step therefore compares all points with the
moved centres, and only points whose own centre moved away from them with all centres
(`benchmarks/evaluation.py --shortcuts` shows what that saves).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._errors import OodmlError

PLUS_PLUS_LIMIT = 1000  # above that many clusters, K sequential draws cost more than they gain
_PLUS_PLUS_SAMPLE = 20  # k-means++ uses this many points per cluster (at least _PLUS_PLUS_ROWS)
_PLUS_PLUS_ROWS = 10_000
_TILE = {"cpu": 2048, "cuda": 16384}  # rows and columns of one block of scores: cache-sized, or 1 GB
_ROWS = 1 << 16  # rows at a time where the work is one vector per row


class Clustering(NamedTuple):
    """`labels` (N,) int64 in 0 … K−1, `centres` (K, d), the sum of squared distances, and the number of steps."""

    labels: Tensor
    centres: Tensor
    inertia: float
    iterations: int
    converged: bool


def kmeans(x: Tensor, k: int, seed: int = 0, iterations: int = 20) -> Clustering:
    """Lloyd's k-means: at most `iterations` updates of the centres, fewer when the assignment stops changing.

    Initial centres: k-means++ up to 1,000 clusters, distinct random points above. They are drawn with a CPU generator,
    so a seed gives the same draws on every device. An empty cluster gets one of the points farthest from their
    centres; with fewer than k distinct points, clusters may stay empty in `labels`.

    Args:
        x: (N, d) float32 or float64.
        k: number of clusters, 1 … N.
    """
    if not 1 <= k <= len(x):
        raise OodmlError(f"k-means needs 1 … {len(x)} clusters for {len(x)} points, not {k}.")
    mean = x.mean(dim=0)
    x = x - mean  # distances are the same, rounding errors smaller
    centres = x[_initial_points(x, k, seed)]
    labels, score = _nearest(x, centres)
    step, converged = 0, False
    while step < iterations and not converged:
        moved_to = _update(x, labels, score, centres)
        new_labels, score = _reassign(x, moved_to, (moved_to != centres).any(dim=1), labels, score)
        converged = bool((new_labels == labels).all())
        labels, centres, step = new_labels, moved_to, step + 1
    return Clustering(labels, centres + mean, _inertia(x, centres, labels), step, converged)


def _nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the best centre (the lowest index among equals) and its score x·c − ‖c‖²/2, tile by tile."""
    tile = _TILE.get(x.device.type, 4096)
    bias, columns = -0.5 * centres.square().sum(dim=1), centres.T
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    best = x.new_full((len(x),), -torch.inf)
    for start in range(0, len(x), tile):
        rows = slice(start, start + tile)
        for first in range(0, len(centres), tile):
            part = slice(first, first + tile)
            value, index = torch.addmm(bias[part], x[rows], columns[:, part]).max(dim=1)
            better = value > best[rows]
            labels[rows] = torch.where(better, index + first, labels[rows])
            best[rows] = torch.where(better, value, best[rows])
    return labels, best


def _reassign(x: Tensor, centres: Tensor, moved: Tensor, labels: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """`_nearest` for the new centres, given the answer for the old ones and which centres moved."""
    own_moved = moved[labels]
    own = _own_score(x, centres, labels)
    all_needed = own_moved & (own < score)
    which = moved.nonzero().flatten()
    share = float(all_needed.double().mean())
    if share + (1 - share) * len(which) / len(centres) > 0.9:
        return _nearest(x, centres)
    labels, score = labels.clone(), torch.where(own_moved, -torch.inf, score)
    if len(which):
        candidate, value = _nearest(x, centres[which])
        candidate = which[candidate]
        better = (value > score) | ((value == score) & (candidate < labels))
        labels, score = torch.where(better, candidate, labels), torch.where(better, value, score)
    rows = all_needed.nonzero().flatten()
    if len(rows):
        labels[rows], score[rows] = _nearest(x[rows], centres)
    return labels, score


def _own_score(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    """x·c − ‖c‖²/2 of each point and the centre it belongs to, in row blocks."""
    bias = -0.5 * centres.square().sum(dim=1)
    parts = zip(x.split(_ROWS), labels.split(_ROWS), strict=True)
    return torch.cat([(rows * centres[own]).sum(dim=1) + bias[own] for rows, own in parts])


def _inertia(x: Tensor, centres: Tensor, labels: Tensor) -> float:
    parts = zip(x.split(_ROWS), labels.split(_ROWS), strict=True)
    return float(sum((rows - centres[own]).double().square().sum() for rows, own in parts))


def _update(x: Tensor, labels: Tensor, score: Tensor, centres: Tensor) -> Tensor:
    """Means of the clusters, empty ones refilled. `embedding_bag` sums in index order, so equal members give
    bit-equal means, also on a GPU (where index_add would add in any order)."""
    labels = _refill(x, labels, score, len(centres))
    order = torch.sort(labels, stable=True).indices
    sizes = torch.bincount(labels, minlength=len(centres))
    return F.embedding_bag(order, x, sizes.cumsum(0) - sizes, mode="mean")


def _refill(x: Tensor, labels: Tensor, score: Tensor, k: int) -> Tensor:
    """Give every empty cluster one of the points farthest from their own centre.

    The first member of each cluster stays, so no cluster is emptied to fill another; N ≥ K leaves enough others.
    """
    sizes = torch.bincount(labels, minlength=k)
    empty = (sizes == 0).nonzero().flatten()
    if len(empty) == 0:
        return labels
    order = torch.sort(labels, stable=True).indices
    first_members = order[(sizes.cumsum(0) - sizes)[sizes > 0]]
    squared_distance = x.square().sum(dim=1) - 2 * score
    squared_distance[first_members] = -torch.inf
    farthest = torch.sort(squared_distance, descending=True, stable=True).indices[: len(empty)]
    return labels.index_copy(0, farthest, empty)


def _initial_points(x: Tensor, k: int, seed: int) -> Tensor:
    """Row indices of the k initial centres, distinct while the points are."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(x), generator=generator).to(x.device)
    if k > PLUS_PLUS_LIMIT:
        return shuffled[:k]
    sample = shuffled[: max(_PLUS_PLUS_ROWS, _PLUS_PLUS_SAMPLE * k)]
    return sample[_plus_plus(x[sample], k, generator)]


def _plus_plus(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k-means++ (Arthur & Vassilvitskii 2007): each next centre is drawn with probability ∝ squared distance.

    The weights are rounded to 30 bits before they are summed: a sum of integers does not depend on its order, which
    keeps the draw deterministic on a GPU.
    """
    draws = torch.rand(k, generator=generator, dtype=torch.float64).to(x.device)
    norms = x.square().sum(dim=1)
    chosen = torch.zeros(k, dtype=torch.int64, device=x.device)  # the sample is shuffled: its first row is random
    nearest = torch.full_like(norms, torch.inf)
    for i in range(1, k):
        last = x[chosen[i - 1]]
        distance = (norms - 2 * (x @ last) + last.square().sum()).clamp_(min=0)
        nearest = torch.minimum(nearest, distance.index_fill(0, chosen[i - 1], 0))
        weights = (nearest * (2**30 / nearest.max().clamp(min=1e-30))).to(torch.int64)
        total = weights.cumsum(0)
        target = (draws[i] * total[-1]).to(torch.int64)
        chosen[i] = torch.searchsorted(total, target, right=True).clamp(max=len(x) - 1)
    return chosen
