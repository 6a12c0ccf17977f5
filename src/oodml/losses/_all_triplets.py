"""Means over every triplet of a batch, none of which is listed.

The sum of [m_ap − m_an + margin]₊ over all triplets is linear in the matrix m (a, b) of anchors and samples: an entry
(a, p) counts as often as it has active negatives, an entry (a, n) is subtracted as often as it is one. Only these
counts are taken, without a graph: a cubic tensor is neither made nor kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml.losses._distances import Directions, Distances
from oodml.miners._autograd import first_order
from oodml.miners._directions import BetweenDirections, directions_of, gradient_of_rows
from oodml.miners._distances import positives_and_negatives, runs_on_cpu, where_else

_BLOCK = 2**22  # entries of a block of triplets


def all_triplets_mean(matrix: Tensor, labels: Tensor, margin: float, of_active: bool = False) -> Tensor:
    """The mean over every triplet whose anchor is a row of the matrix, or over those above 0; 0 without any."""
    with torch.no_grad():
        weights, active, every = (weights_by_pair if runs_on_cpu(matrix) else weights_by_rank)(matrix, labels, margin)
        terms = active if of_active else every
        terms = terms.clamp_min(1) if isinstance(terms, Tensor) else max(terms, 1.0)
        shares, offset = weights.div_(terms), active * margin / terms
    return torch.dot(shares.flatten(), matrix.flatten()) + offset


class _OfDirections(torch.autograd.Function):
    """`all_triplets_mean` of the distances between the directions of rows (b, d), on a CPU: one node of a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, margin: float) -> Tensor:
        between = directions_of(x)
        weights, active, every = weights_by_pair(between.distances, labels, margin)
        total = torch.dot(weights.flatten(), between.distances.flatten()).item() + active * margin
        ctx.save_for_backward(*between, weights)
        ctx.terms = max(every, 1)
        return x.new_full((), total / ctx.terms)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        *between, weights = ctx.saved_tensors
        return gradient_of_rows(BetweenDirections(*between), weights, gradient.item() / ctx.terms), None, None


def all_triplets_of_distances(distances: Distances, labels: Tensor, margin: float) -> Tensor:
    """`all_triplets_mean` of the distances of a batch, whose matrix it may not need to put into a graph."""
    if isinstance(distances, Directions) and runs_on_cpu(distances.embeddings):
        return _OfDirections.apply(distances.embeddings, labels, margin)
    return all_triplets_mean(distances.matrix, labels, margin)


def weights_by_pair(matrix: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, float, float]:
    """How often each entry counts (a, b), the number of active triplets, and of all; negatives counted pair by pair.

    In blocks of pairs (a, p), which bound the memory. The fastest way on a CPU, where numbers on the host cost nothing
    and need no kernels.
    """
    a, b = matrix.shape
    weights, active = torch.zeros_like(matrix), 0.0
    own = (labels[:a, None] == labels).to(matrix.dtype)
    far = torch.add(matrix, own, alpha=torch.finfo(matrix.dtype).max / 4)  # what is no negative is never near enough
    sizes = own.sum(1).double()  # of the anchors' classes; Σ n² is exact then
    pairs = own.fill_diagonal_(0).nonzero()
    block = max(1, _BLOCK // b)
    for part in pairs.split(block) if len(pairs) > block else (pairs,):
        anchor, positive = part.unbind(1)
        place = torch.add(positive, anchor, alpha=b)
        reach = matrix.flatten().index_select(0, place) + margin
        nearer = far.index_select(0, anchor).lt_(reach[:, None])  # 1 and 0, in the matrix's own type
        count = nearer.sum(1)
        weights.index_add_(0, anchor, nearer, alpha=-1).view(-1).index_add_(0, place, count)
        active += count.sum().item()
    # Σ (n − 1)(b − n) over the anchors, n the size of their class, so that there are Σ (n − 1) pairs
    return weights, active, (b + 1) * len(pairs) + a - torch.dot(sizes, sizes).item()


def weights_by_rank(matrix: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same from each entry's rank among the sorted entries of the other kind: nothing waits for a device."""
    positives, negatives = positives_and_negatives(labels, len(matrix))
    reach = matrix + margin
    far = where_else(negatives, matrix, torch.inf).sort(1).values
    near = where_else(positives, reach, -torch.inf).sort(1).values
    pulled = torch.searchsorted(far, reach) * positives
    pushed = (matrix.shape[1] - torch.searchsorted(near, matrix, right=True)) * negatives
    mates = positives.sum(1, dtype=matrix.dtype)
    every = torch.dot(mates, matrix.shape[1] - 1 - mates)  # what is neither positive nor the anchor itself
    return (pulled - pushed).to(matrix.dtype), pulled.sum(dtype=matrix.dtype), every
