"""Recall@1 at a common size: its expectation for a given number of classes and of images per class.

Removing classes from a test set shrinks the gallery, and a smaller gallery is easier: recall@1 of two splits of
different size is not comparable. `recall@1:matched` is the expectation over random subsets of `classes` classes and
`images` images of each (all images of a class with fewer), the same size for every split; every query that can be
drawn has the same weight.

Where every image of a drawn class is kept, the expectation has a closed form. Let s be the number of other classes with
an image nearer to the query than its nearest relevant one: the query succeeds if none of them is drawn, with
probability C(T−1−s, c−1) / C(T−1, c−1) for c of T classes. Otherwise it is the share over draws of a fixed seed, read
from the neighbour lists (the nearest neighbour that was drawn), with its standard error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.evaluation.neighbours import Neighbours, find_neighbours

DRAWS = 50
LIST_DEPTH = 100  # neighbours per list: at half the images of half the classes, one list in 10¹² has none drawn


@dataclass(frozen=True)
class MatchedRecall:
    """The expectation, its standard error (0: exact), and a note on how it was computed."""

    value: float
    standard_error: float
    note: str


def matched_recall(
    embeddings: Tensor, ids: Tensor, match: Any, neighbours: Neighbours, seed: int = 0, draws: int = DRAWS
) -> MatchedRecall:
    """Expected recall@1 on random subsets of match = (classes, images per class).

    Args:
        embeddings: (N, d); ids: (N,) int64 class ids 0 … T−1, all present.
        neighbours: exact neighbours of the set within itself, of any depth; deeper lists need fewer second searches.
    """
    sizes = torch.bincount(ids)
    classes, images = _checked(match, len(sizes))
    small = int((sizes < images).sum())
    note = f"{classes} of {len(sizes)} classes, {images} images per class"
    note += f" ({small} classes have fewer: all of theirs)" if small else ""
    if int(sizes.max()) <= images:
        exact = _over_classes(embeddings, ids, neighbours, len(sizes), classes)
        return MatchedRecall(exact, 0.0, note + "; exact")
    generator = torch.Generator().manual_seed(seed)
    subsets = (_draw(ids, sizes, classes, images, generator) for _ in range(draws))
    hits, queries = torch.stack([_hits_of(kept, embeddings, ids, neighbours) for kept in subsets]).unbind(1)
    value = hits.sum() / queries.sum()
    # The error of a ratio of sums (delta method); the draws have one size unless classes are too small.
    error = (hits - value * queries).std() / queries.mean() / draws**0.5
    return MatchedRecall(float(value), float(error), note + f"; {draws} draws")


def _checked(match: Any, total: int) -> tuple[int, int]:
    try:
        classes, images = (int(each) for each in match)
    except (TypeError, ValueError):
        raise OodmlError(f"match={match!r}: give (classes, images per class), for example (50, 20).") from None
    if not 1 <= classes <= total or images < 1:
        raise OodmlError(f"match={match!r}: classes must be 1 … {total}, images at least 1.")
    if images == 1:
        raise OodmlError(f"match={match!r}: with one image per class no query has a relevant neighbour; use 2 or more.")
    return classes, images


def _draw(ids: Tensor, sizes: Tensor, classes: int, images: int, generator: torch.Generator) -> Tensor:
    """(N,) bool: a random subset. Drawn on the CPU, so that every device draws the same."""
    chosen = torch.zeros(len(sizes), dtype=torch.bool)
    chosen[torch.randperm(len(sizes), generator=generator)[:classes]] = True
    shuffled = torch.randperm(len(ids), generator=generator).to(ids.device)
    order = shuffled[ids[shuffled].argsort(stable=True)]
    place = torch.arange(len(ids), device=ids.device) - (sizes.cumsum(0) - sizes)[ids[order]]
    first = torch.empty_like(ids, dtype=torch.bool).scatter_(0, order, place < images)
    return first & chosen.to(ids.device)[ids]


def _hits_of(kept: Tensor, embeddings: Tensor, ids: Tensor, neighbours: Neighbours) -> Tensor:
    """Queries that succeed at rank 1, and queries, when only the `kept` rows are queries and gallery: (2,) float64."""
    rows = kept.nonzero().flatten()
    lists = neighbours.indices[rows]
    present = kept[lists]
    nearest = lists.gather(1, present.byte().argmax(1, keepdim=True)).flatten()
    missing = (~present.any(1)).nonzero().flatten()
    if len(missing) and len(rows) > 1:
        again = find_neighbours(embeddings[rows[missing]], embeddings[rows], 1, own=missing)
        nearest[missing] = rows[again.indices.flatten()]
    hits = (ids[nearest] == ids[rows]).double()
    return torch.stack([hits.sum(), hits.new_tensor(len(rows))])


def _over_classes(embeddings: Tensor, ids: Tensor, neighbours: Neighbours, total: int, classes: int) -> float:
    """The closed form, for whole classes."""
    nearer, found = _classes_nearer(ids[neighbours.indices], ids)
    missing = (~found & (torch.bincount(ids)[ids] > 1)).nonzero().flatten()
    for rows in missing.split(max(1, 2**24 // len(ids))):  # their relevant items lie beyond the lists
        whole = find_neighbours(embeddings[rows], embeddings, len(ids) - 1, own=rows)
        nearer[rows], found[rows] = _classes_nearer(ids[whole.indices], ids[rows])
    # C(T−1−s, c−1) / C(T−1, c−1) through log Γ, in float64; impossible (0) where too few classes are left.
    left = (total - 1 - nearer).double()
    other = torch.tensor(classes - 1.0, dtype=torch.float64, device=ids.device)
    chance = (_log_choose(left.clamp_min(other), other) - _log_choose(left.new_tensor(total - 1.0), other)).exp()
    return float(torch.where(found & (left >= other), chance, 0.0).mean())


def _classes_nearer(listed: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct classes listed (Q, K) before the first of the query's own, (Q,), and whether that one is there."""
    relevant = listed == own[:, None]
    first = torch.where(relevant.any(1), relevant.byte().argmax(1), listed.shape[1])
    before = torch.arange(listed.shape[1], device=listed.device) < first[:, None]
    ordered = torch.where(before, listed, -1).sort(1).values
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (new & (ordered >= 0)).sum(1), relevant.any(1)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
