"""Re-ranking against dense float64 implementations written from the papers' definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oodml
from oodml.evaluation import find_neighbours
from oodml.evaluation.rerank import k_reciprocal, query_expansion


def clustered(n: int, classes: int, d: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    return torch.randn(classes, d, generator=g)[labels] + torch.randn(n, d, generator=g), labels


def squared_distances(x: torch.Tensor) -> np.ndarray:
    y = x.double().numpy()
    return ((y[:, None] - y[None]) ** 2).sum(-1)


def slow_k_reciprocal(far: np.ndarray, k1: int, k2: int, weight: float) -> np.ndarray:
    """(N, N) combined distances: sets and loops, all points against all."""
    n = len(far)
    order = [sorted(range(n), key=lambda j, i=i: (j != i, far[i, j], j)) for i in range(n)]

    def mutual(i: int, k: int) -> set[int]:
        return {j for j in order[i][: k + 1] if i in order[j][: k + 1]}

    v = np.zeros((n, n))
    for i in range(n):
        base = mutual(i, k1)
        grown = set(base)
        for j in base:
            theirs = mutual(j, round(k1 / 2))
            if len(theirs & base) > 2 / 3 * len(theirs):
                grown |= theirs
        for j in grown:
            v[i, j] = np.exp(-far[i, j] / far[i].max())
        v[i] /= v[i].sum()
    v = np.stack([v[order[i][:k2]].mean(0) for i in range(n)])
    shared = np.minimum(v[:, None], v[None]).sum(-1)
    largest = np.maximum(v[:, None], v[None]).sum(-1)
    return (1 - weight) * (1 - shared / largest) + weight * far / far.max(1, keepdims=True)


@pytest.mark.parametrize(("k1", "k2", "weight"), [(20, 6, 0.3), (5, 1, 0.0), (8, 3, 0.7)])
def test_k_reciprocal_equals_the_definition(k1: int, k2: int, weight: float) -> None:
    x, _ = clustered(90, 6)
    plain = find_neighbours(x, None, 40)
    got = k_reciprocal(plain, x, None, k1=k1, k2=k2, weight=weight)
    slow = torch.from_numpy(slow_k_reciprocal(squared_distances(x), k1, k2, weight))
    wanted = slow.gather(1, plain.indices).sort(dim=1, stable=True)
    torch.testing.assert_close(got.distances.double(), wanted.values, rtol=0, atol=1e-5)
    torch.testing.assert_close(slow.gather(1, got.indices), wanted.values, rtol=0, atol=1e-5)
    assert torch.equal(got.indices.sort(1).values, plain.indices.sort(1).values)


def test_k_reciprocal_of_queries_in_a_gallery_uses_all_points() -> None:
    x, _ = clustered(80, 5, seed=1)
    q, g = x[:20], x[20:]
    plain = find_neighbours(q, g, 30)
    got = k_reciprocal(plain, q, g)
    slow = torch.from_numpy(slow_k_reciprocal(squared_distances(x), 20, 6, 0.3))[:20, 20:]
    torch.testing.assert_close(got.distances.double(), slow.gather(1, plain.indices).sort(1).values, rtol=0, atol=1e-5)


def test_query_expansion_equals_the_definition() -> None:
    x, _ = clustered(70, 5)
    y = x.double()
    near = find_neighbours(x, None, 10)
    moved = []
    for i in range(len(y)):
        total = y[i].clone()
        for j in near.indices[i, :4].tolist():
            total += max(float(torch.cosine_similarity(y[i], y[j], dim=0)), 0.0) ** 2 * y[j]
        moved.append(total / total.norm() * y[i].norm())
    far = torch.cdist(torch.stack(moved), y)
    far.fill_diagonal_(torch.inf)
    got = query_expansion(near, x, None, k=4, alpha=2.0)
    torch.testing.assert_close(got.distances.double(), far.sort(1).values[:, :10], rtol=0, atol=1e-4)
    assert not (got.indices == torch.arange(70)[:, None]).any()


@pytest.mark.parametrize("name", ["k-reciprocal", "query-expansion"])
def test_re_ranking_lifts_precision_on_noisy_clusters_and_is_noted(name: str) -> None:
    x, labels = clustered(300, 10, d=12, seed=2)
    plain = oodml.evaluate(x, labels, ["map@r"])
    better = oodml.evaluate(x, labels, ["map@r"], rerank=name)
    assert better["map@r"] > plain["map@r"] + 0.02
    assert "reranked" in better.notes and "reranked" not in plain.notes


def test_unknown_names_and_options_are_explained() -> None:
    x, labels = clustered(30, 3)
    with pytest.raises(oodml.OodmlError, match="Did you mean 'k-reciprocal'"):
        oodml.evaluate(x, labels, "recall@1", rerank="k-reciprocl")
    with pytest.raises(oodml.OodmlError, match="k1"):
        oodml.evaluate(x, labels, "recall@1", rerank={"name": "k-reciprocal", "k3": 3})
