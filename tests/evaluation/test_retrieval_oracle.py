"""Retrieval metrics against brute force in float64, written from the definitions, one query at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oodml

METRICS = [
    "recall@1",
    "recall@2",
    "map@r",
    "map@c",
    "map@1000",
    "r-precision",
    "map@c:reference",
    "map@1000:reference",
    "precision@c",
    "precision@1000",
]


def ranking(x: np.ndarray, i: int) -> list[int]:
    """Every other row, by float64 distance, then by index."""
    far = ((x.astype(np.float64) - x[i].astype(np.float64)) ** 2).sum(1)
    return [j for j in np.argsort(far, kind="stable").tolist() if j != i]


def oracle(rankings: list[list[int]], relevant: np.ndarray, own: int, ks: tuple[int, ...] = (1, 2)) -> dict[str, float]:
    """Scores from full rankings and a relevance matrix; `own` is 1 when the query belongs to the set."""
    rows: dict[str, list[float]] = {name: [] for name in METRICS if "recall" not in name}
    rows |= {f"recall@{k}": [] for k in ks}
    for i, order in enumerate(rankings):
        hits = [bool(relevant[i, j]) for j in order]
        p, n_c, m = sum(hits), sum(hits) + own, len(order)
        for k in ks:
            rows[f"recall@{k}"].append(float(any(hits[:k])))
        if p == 0:
            continue

        so_far = list(itertools.accumulate(hits))

        def ap(cut: int, hits: list[bool] = hits, so_far: list[int] = so_far) -> float:
            return math.fsum(so_far[r] / (r + 1) for r in range(min(cut, len(hits))) if hits[r])

        rows["map@r"].append(ap(p) / p)
        rows["map@c"].append(ap(n_c) / p)
        rows["map@1000"].append(ap(1000) / min(1000, p))
        rows["r-precision"].append(sum(hits[:p]) / p)
        rows["map@c:reference"].append(ap(n_c) / n_c)
        rows["map@1000:reference"].append(ap(1000) / n_c)
        rows["precision@c"].append(sum(hits[:n_c]) / n_c)
        rows["precision@1000"].append(sum(hits[:1000]) / min(1000, m))
    return {name: float(np.mean(values)) if values else 0.0 for name, values in rows.items()}


def same(labels: list) -> np.ndarray:
    values = np.asarray(labels)
    return values[:, None] == values[None]


@st.composite
def small_sets(draw: st.DrawFn) -> tuple[np.ndarray, list]:
    """Points on a coarse grid, so that exact copies and equal distances abound; labels of any kind."""
    n = draw(st.integers(2, 24))
    d = draw(st.integers(1, 4))
    grid = st.integers(-2, 2)
    x = np.array(draw(st.lists(st.lists(grid, min_size=d, max_size=d), min_size=n, max_size=n)), dtype=np.float32)
    kind = draw(st.sampled_from(["one", "contiguous", "gaps", "text", "singletons"]))
    picks = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    labels: list = {
        "one": [7] * n,
        "contiguous": picks,
        "gaps": [p * 1000 - 5 for p in picks],
        "text": [f"class {p}" for p in picks],
        "singletons": [p if p else 100 + i for i, p in enumerate(picks)],
    }[kind]
    return x * draw(st.sampled_from([1.0, 0.25, 64.0])) + draw(st.sampled_from([0.0, 8.0, 4096.0])), labels


@settings(max_examples=150, deadline=None)
@given(small_sets())
@pytest.mark.filterwarnings("ignore:No query has a relevant item")
def test_every_metric_equals_brute_force_with_copies_ties_and_singletons(case: tuple[np.ndarray, list]) -> None:
    x, labels = case
    ks = (1, 2) if len(x) > 2 else (1,)
    wanted = oracle([ranking(x, i) for i in range(len(x))], same(labels), own=1, ks=ks)
    got = oodml.evaluate(x, labels, metrics=list(wanted))
    assert got == pytest.approx(wanted, abs=1e-6)
    lonely = sum(labels.count(label) == 1 for label in labels)
    assert got.notes.get("singletons", 0) == lonely


@settings(max_examples=60, deadline=None)
@given(small_sets(), st.integers(1, 12))
@pytest.mark.filterwarnings("ignore:No query has a relevant item")
def test_queries_against_a_gallery_equal_brute_force(case: tuple[np.ndarray, list], queries: int) -> None:
    x, labels = case
    queries = min(queries, len(x) - 1)
    q, g = x[:queries], x[queries:]
    far = ((q[:, None].astype(np.float64) - g[None]) ** 2).sum(-1)
    rankings = [sorted(range(len(g)), key=lambda j, row=row: (row[j], j)) for row in far]
    relevant = same(labels)[:queries, queries:]
    wanted = oracle(rankings, relevant, own=0, ks=(1,))
    got = oodml.evaluate(q, labels[:queries], list(wanted), gallery=g, gallery_labels=labels[queries:])
    assert got == pytest.approx(wanted, abs=1e-6)


def clustered(
    n: int, classes: int, d: int = 16, seed: int = 0, noise: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    x = torch.randn(classes, d, generator=g)[labels] + noise * torch.randn(n, d, generator=g)
    return torch.nn.functional.normalize(x, dim=1), labels


def test_large_set_with_more_than_1000_neighbours_equals_brute_force() -> None:
    x, labels = clustered(1300, 3, d=4)  # classes larger than 1000 candidates are ranked to their own depth
    wanted = oracle([ranking(x.numpy(), i) for i in range(len(x))], same(labels.tolist()), own=1, ks=(1, 2))
    got = oodml.evaluate(x, labels, metrics=METRICS)
    assert got == pytest.approx(wanted, abs=1e-5)


def test_a_perfect_ranking_scores_one_and_the_reference_variants_their_ceiling() -> None:
    x = torch.repeat_interleave(torch.eye(6), 5, dim=0)
    labels = torch.arange(6).repeat_interleave(5)
    got = oodml.evaluate(x, labels, [*METRICS])
    assert [got[m] for m in ("recall@1", "map@r", "map@c", "map@1000", "r-precision")] == [1.0] * 5
    assert got["map@c:reference"] == pytest.approx(0.8) and got["map@1000:reference"] == pytest.approx(0.8)
    assert got["precision@c"] == pytest.approx(0.8)
    assert got["precision@1000"] == pytest.approx(4 / 29)


def test_defaults_shrink_to_the_set_and_only_an_explicit_cut_off_beyond_it_is_an_error() -> None:
    x, labels = clustered(30, 3)
    retrieval = [f"recall@{k}" for k in (1, 2, 4, 8, 10)]
    got = oodml.evaluate(x, labels)
    assert [name for name in got if name.startswith("recall")] == retrieval
    assert {"map@r", "map@c", "map@1000", "r-precision", "nmi", "f1"} <= got.keys()
    assert oodml.evaluate(x, labels, ["map@1000"], k=29).keys() == {"map@1000", "recall@29"}
    with pytest.raises(oodml.OodmlError, match="29 candidates"):
        oodml.evaluate(x, labels, k=30)
    with pytest.raises(oodml.OodmlError, match="29 candidates"):
        oodml.evaluate(x, labels, metrics=["recall@1000"])
