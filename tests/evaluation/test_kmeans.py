"""k-means: a plain Lloyd in float64 as oracle, scikit-learn for the quality, and what keeps it deterministic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from oodml import OodmlError
from oodml.evaluation import kmeans as module
from oodml.evaluation.kmeans import kmeans


def blobs(n, k, d, seed, spread=0.3):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(k, d, generator=generator)
    labels = torch.randint(0, k, (n,), generator=generator)
    return centres[labels] + spread * torch.randn(n, d, generator=generator)


def plain_lloyd(x, first, iterations):
    """All distances in every step, no shortcut; stops with an error where a cluster runs empty."""
    x = x.double()
    centres = x[first]
    labels = torch.cdist(x, centres).argmin(dim=1)
    for _ in range(iterations):
        centres = torch.stack([x[labels == c].mean(dim=0) for c in range(len(centres))])
        assert not centres.isnan().any(), "the oracle does not refill clusters: choose other data"
        new = torch.cdist(x, centres).argmin(dim=1)
        if bool((new == labels).all()):
            break
        labels = new
    return labels, centres


@pytest.mark.parametrize("tile", [pytest.param(5, marks=pytest.mark.long), 64, 2048])
@pytest.mark.parametrize("k", [2, 7, 30])
@pytest.mark.parametrize("iterations", [1, 4, 20])
def test_skipping_centres_that_did_not_move_changes_nothing(monkeypatch, tile, k, iterations):
    monkeypatch.setitem(module._TILE, "cpu", tile)
    x = blobs(400, 40, 6, seed=k)
    expected, centres = plain_lloyd(x, module._initial_points(x - x.mean(dim=0), k, 0), iterations)
    found = kmeans(x, k, iterations=iterations)
    assert torch.equal(found.labels, expected)
    assert torch.allclose(found.centres.double(), centres, atol=1e-5)
    assert found.inertia == pytest.approx(float((x.double() - centres[expected]).square().sum()), rel=1e-5)


def test_the_shortcut_is_taken(monkeypatch):
    """The test above would pass if every step compared everything; count the comparisons."""
    compared = []
    real = module._nearest

    def counting(x, centres):
        compared.append(len(x) * len(centres))
        return real(x, centres)

    monkeypatch.setattr(module, "_nearest", counting)
    result = kmeans(blobs(2000, 300, 16, seed=1), 300)
    assert sum(compared) < 0.6 * 2000 * 300 * (result.iterations + 1)


@pytest.mark.parametrize("k", [3, 50, 400])
def test_clusters_are_as_tight_as_those_of_scikit_learn(k):
    x = blobs(1500, 60, 12, seed=2)
    runs = [KMeans(k, n_init=1, max_iter=20, random_state=s).fit(x.numpy()).inertia_ for s in range(5)]
    ours = [kmeans(x, k, seed=s).inertia for s in range(5)]
    assert min(ours) < 1.15 * min(runs)


def test_random_points_start_large_problems(monkeypatch):
    monkeypatch.setattr(module, "PLUS_PLUS_LIMIT", 20)
    x = blobs(300, 60, 8, seed=3)
    result = kmeans(x, 60)
    assert len(result.labels.unique()) == 60
    assert result.inertia < 2 * KMeans(60, n_init=1, random_state=0).fit(x.numpy()).inertia_


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(0, 10**6), st.data())
def test_every_distinct_point_set_fills_its_clusters(values, seed, data):
    """Many duplicates: as many clusters are filled as the points allow, none is lost, nothing is NaN."""
    x = torch.tensor(values, dtype=torch.float32)[:, None] * torch.tensor([[1.0, -2.0]])
    k = data.draw(st.integers(1, len(values)))
    result = kmeans(x, k, seed=seed)
    assert torch.isfinite(result.centres).all()
    assert len(result.labels.unique()) == min(k, len(set(values)))
    distances = torch.cdist(x.double(), result.centres.double())
    assert torch.allclose(distances.gather(1, result.labels[:, None]).flatten(), distances.amin(dim=1), atol=1e-5)


@pytest.mark.parametrize("k", [10, 1200])
def test_two_runs_are_bit_equal_and_leave_the_global_generator_alone(k):
    x = blobs(1300, 30, 8, seed=4)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a = kmeans(x, k, seed=9)
    torch.randn(3)
    b = kmeans(x, k, seed=9)
    assert torch.equal(a.labels, b.labels) and torch.equal(a.centres, b.centres) and a.inertia == b.inertia
    torch.manual_seed(0)
    kmeans(x, k, seed=9)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(a.labels, kmeans(x, k, seed=10).labels)


def test_plus_plus_draws_in_proportion_to_squared_distance():
    x = torch.tensor([[0.0], [1.0], [3.0]])  # from 0: weights 1 and 9
    picks = [int(module._plus_plus(x, 2, torch.Generator().manual_seed(s))[1]) for s in range(2000)]
    assert picks.count(0) == 0
    assert picks.count(2) / 2000 == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("k", [0, 4])
def test_impossible_numbers_of_clusters_are_refused(k):
    with pytest.raises(OodmlError, match=r"1 … 3 clusters"):
        kmeans(torch.ones(3, 2), k)
