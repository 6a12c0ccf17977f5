"""How well k-means clusters of the embeddings agree with the classes: NMI, AMI, pair-counting F1, purity.

All four read one sparse table: how many images of class j are in cluster i, for the pairs (i, j) that occur. With N
images there are at most N such pairs, so nothing of size K × K is built.

Special cases: a clustering equal to the classes scores 1 in every measure, also with one class or with every image
its own class; otherwise a measure whose denominator is 0 scores 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oodml._errors import unknown_name
from oodml.evaluation.kmeans import kmeans

ITERATIONS = 20  # as in the papers' code
_CELLS = 1 << 22  # size of one block of the expected mutual information


class Contingency(NamedTuple):
    """Two partitions of N images: overlaps that occur, and the sizes of the parts (all int64, no zeros).

    `overlap[t]` images are in cluster `cluster[t]` and class `klass[t]`, positions into the two size vectors.
    """

    overlap: Tensor
    cluster: Tensor
    klass: Tensor
    cluster_sizes: Tensor
    class_sizes: Tensor

    @property
    def total(self) -> int:
        return int(self.class_sizes.sum())

    @property
    def identical(self) -> bool:
        """Whether the two partitions are the same up to names: every overlap is a whole cluster and a whole class."""
        return len(self.overlap) == len(self.cluster_sizes) == len(self.class_sizes)


def clustering_scores(embeddings: Tensor, labels: Tensor, metrics: Sequence[str], seed: int = 0) -> dict[str, float]:
    """The named scores of one k-means clustering with K = number of classes present.

    Args:
        embeddings: (N, d) float.
        labels: (N,) int64 class ids, contiguous from 0.
        metrics: of "nmi", "ami", "f1", "purity".
    """
    wanted = {name: CLUSTERING_METRICS.get(name) for name in metrics}
    for name, score in wanted.items():
        if score is None:
            raise unknown_name("clustering metric", name, CLUSTERING_METRICS)
    if not wanted:
        return {}
    clusters = kmeans(embeddings, int(labels.max()) + 1, seed=seed, iterations=ITERATIONS).labels
    table = contingency(clusters, labels)
    return {name: score(table) for name, score in wanted.items() if score is not None}


def contingency(clusters: Tensor, labels: Tensor) -> Contingency:
    """The sparse table of two integer labellings of the same images."""
    _, cluster_ids, cluster_sizes = torch.unique(clusters, return_inverse=True, return_counts=True)
    _, class_ids, class_sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    pairs, overlap = torch.unique(cluster_ids * len(class_sizes) + class_ids, return_counts=True)
    return Contingency(
        overlap,
        torch.div(pairs, len(class_sizes), rounding_mode="floor"),
        pairs % len(class_sizes),
        cluster_sizes,
        class_sizes,
    )


def nmi(table: Contingency) -> float:
    """Normalised mutual information 2·I(clusters; classes) / (H(clusters) + H(classes))."""
    if table.identical:
        return 1.0
    entropies = _entropy(table.cluster_sizes) + _entropy(table.class_sizes)
    return min(1.0, max(0.0, 2 * _mutual_information(table) / entropies))


def ami(table: Contingency) -> float:
    """Mutual information adjusted for chance (Vinh et al. 2010): (I − E[I]) / (mean entropy − E[I]).

    Unlike NMI it does not increase with the number of clusters; about 0 for a random clustering, may be negative.
    """
    if table.identical:
        return 1.0
    expected = _expected_mutual_information(table.cluster_sizes, table.class_sizes)
    ceiling = (_entropy(table.cluster_sizes) + _entropy(table.class_sizes)) / 2
    gain, largest = _mutual_information(table) - expected, ceiling - expected
    return 0.0 if abs(largest) < 1e-12 else gain / largest


def f1(table: Contingency) -> float:
    """F1 over pairs of images: together in a cluster (predicted) against together in a class (true)."""
    if table.identical:
        return 1.0
    both, predicted, true = (_pairs(n) for n in (table.overlap, table.cluster_sizes, table.class_sizes))
    return 2 * both / (predicted + true)


def purity(table: Contingency) -> float:
    """Share of images that belong to the most frequent class of their cluster."""
    largest = torch.zeros_like(table.cluster_sizes).scatter_reduce(0, table.cluster, table.overlap, "amax")
    return int(largest.sum()) / table.total


CLUSTERING_METRICS: dict[str, Callable[[Contingency], float]] = {"nmi": nmi, "ami": ami, "f1": f1, "purity": purity}


def _pairs(sizes: Tensor) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


def _entropy(sizes: Tensor) -> float:
    share = sizes.double() / sizes.sum()
    return float(-(share * share.log()).sum())


def _mutual_information(table: Contingency) -> float:
    n = table.overlap.double()
    expected = table.cluster_sizes[table.cluster].double() * table.class_sizes[table.klass].double() / table.total
    return float((n / table.total * (n / expected).log()).sum())


def _expected_mutual_information(cluster_sizes: Tensor, class_sizes: Tensor) -> float:
    """E[I] over random partitions with these sizes: Σ_ij Σ_n P(n | a_i, b_j, N) · n/N · log(N n / (a_i b_j)).

    P is hypergeometric. A term depends on the sizes alone, and N images have fewer than √(2N) distinct sizes: the sum
    runs over distinct pairs of sizes, weighted by how often they occur, instead of K² clusters and classes.
    """
    total = int(class_sizes.sum())
    sizes_a, times_a = torch.unique(cluster_sizes, return_counts=True)
    sizes_b, times_b = torch.unique(class_sizes, return_counts=True)
    a = sizes_a.repeat_interleave(len(sizes_b)).double()
    b = sizes_b.repeat(len(sizes_a)).double()
    times = (times_a[:, None] * times_b).flatten().double()
    width = torch.minimum(a, b) - (a + b - total).clamp(min=1)
    order = torch.argsort(width, stable=True)  # blocks of similar width need little padding
    blocks = torch.stack([a, b, times])[:, order].split(max(1, _CELLS // int(width.max() + 1)), dim=1)
    return float(sum(_expected_terms(block, total).sum() for block in blocks))


def _expected_terms(sizes: Tensor, total: int) -> Tensor:
    """The inner sums over n, from the least to the largest overlap, for columns (a, b, how often that pair occurs)."""
    a, b, times = sizes[:, :, None]
    low, high = (a + b - total).clamp(min=1), torch.minimum(a, b)
    n = low + torch.arange(int((high - low).max()) + 1, dtype=torch.float64, device=a.device)
    inside, n = n <= high, torch.minimum(n, high)
    fixed = _log_factorial(torch.stack([a, b, total - a, total - b])).sum(dim=0) - math.lgamma(total + 1)
    free = _log_factorial(torch.stack([n, a - n, b - n, (total - a - b + n).clamp(min=0)])).sum(dim=0)
    return times * inside * (n / total * (total * n / (a * b)).log()) * (fixed - free).exp()


def _log_factorial(n: Tensor) -> Tensor:
    return torch.lgamma(n + 1)
