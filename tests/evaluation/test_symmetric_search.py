"""A set searched among itself by shared tiles, against whole rows of float64 distances."""

import functools

import numpy as np
import pytest
import torch

from oodml.evaluation import _symmetric, find_neighbours
from oodml.evaluation._search import Search, prepare
from oodml.evaluation._symmetric import SymmetricSearch

N = 2500


@functools.cache
def brute_force(kind):
    """Indices and distances by whole rows of exact differences, ties by index; written without the product."""
    x = points(kind).double()
    squared = torch.stack([(row - x).square().sum(1) for row in x])
    squared.fill_diagonal_(torch.inf)
    found, columns = squared.float().sort(dim=1, stable=True)
    return columns, found.sqrt()


@pytest.fixture
def used(monkeypatch):
    """Counts the symmetric searches, so that no test passes by another way."""
    calls = []
    begin = SymmetricSearch.__init__
    monkeypatch.setattr(SymmetricSearch, "__init__", lambda self, *a: (calls.append(1), begin(self, *a))[1])
    return calls


def points(kind, n=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if kind == "whole":  # exact in float32, with ties in every row and no copies
        grid = torch.cartesian_prod(*[torch.arange(4.0)] * 6)
        return grid[torch.randperm(len(grid), generator=generator)[:n]]
    x = torch.randn(n, 16, generator=generator)
    if kind == "clustered":  # a third of the set in one knot: bounds set by a sample are poor there
        x[: n // 3] = 0.05 * x[: n // 3] + 2
    return x + (1000 if kind == "far" else 0)


@pytest.mark.parametrize("kind", ["plain", "whole", "clustered", "far"])
@pytest.mark.parametrize("k", [1, 20, 80])
def test_equals_whole_rows(kind, k, used):
    x = points(kind)
    found = find_neighbours(x, None, k)
    columns, distances = (each[:, :k] for each in brute_force(kind))
    assert used == [1]
    torch.testing.assert_close(found.distances, distances, rtol=1e-4, atol=1e-4)
    if kind in ("plain", "whole"):
        differ = int((found.indices != columns).sum())
        assert differ <= (0 if kind == "whole" else 1e-3 * columns.numel())  # float32 may swap two as good as equal


@pytest.mark.parametrize(("name", "value"), [("_bound_place", 1), ("_capacity", 30)])
def test_wrong_bounds_change_nothing(name, value, monkeypatch, used):
    """Bounds too low, or more candidates than there is room for: rows are searched again."""
    x = points("plain")
    wanted = find_neighbours(x, None, 20)
    monkeypatch.setattr(_symmetric, name, lambda n, reach: value)
    found = find_neighbours(x, None, 20)
    assert used == [1, 1]
    assert torch.equal(found.indices, wanted.indices)
    torch.testing.assert_close(found.distances, wanted.distances)


def test_does_not_depend_on_the_number_of_threads(used):
    x, before = points("plain"), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(find_neighbours(x, None, 20))
    finally:
        torch.set_num_threads(before)
    assert used == [1, 1]
    assert torch.equal(results[0].indices, results[1].indices)
    assert torch.equal(results[0].distances, results[1].distances)


def test_is_left_alone_where_it_does_not_suit():
    x = points("plain")
    own = torch.arange(N)

    def suits(rows, k, memory=2**31):
        return SymmetricSearch.suits(Search(rows, prepare(rows), k, own[: len(rows)]), memory)

    assert suits(x, 20)
    assert not suits(x, 500)  # too many neighbours for its size
    assert not suits(x[:1000], 5)  # too small
    assert not suits(x, 20, memory=2**20)  # no room for the candidates
    x[7] = x[3]
    assert not suits(x, 20)  # copies must have equal distances


def test_memory_grows_with_the_rows_not_with_their_square():
    sizes = [8 * n * _symmetric._capacity(n, 17) for n in (10**4, 10**5, 10**6)]
    assert sizes[1] / sizes[0] < 20 and sizes[2] / sizes[1] < 12
    assert sizes[2] < 4 * 2**30


def test_room_and_bounds_hold_almost_every_row():
    """Fewer than one row in a hundred is searched twice on data without structure."""
    x = torch.randn(6000, 32, generator=torch.Generator().manual_seed(1))
    search = SymmetricSearch(Search(x, prepare(x), 100, torch.arange(len(x))), 1)
    counts, room = search._counts, search._keys.shape[1]
    assert np.mean((counts < search.reach) | (counts > room)) < 0.01
