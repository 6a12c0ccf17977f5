"""The neighbour engine against brute force in float64, and the promises it makes about ties, precision and memory."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oodml import OodmlError
from oodml.evaluation import find_neighbours
from oodml.evaluation._search import first_copies, full_float32
from oodml.evaluation._select import _smallest_topk, smallest, smallest_stable
from oodml.evaluation.neighbours import Block, search_blocks


def exact(queries: Tensor, gallery: Tensor, excludes_self: bool) -> tuple[Tensor, Tensor]:
    """Indices and distances of full rankings in float64, equal distances by index."""
    far = (queries.double()[:, None] - gallery.double()[None]).square().sum(-1).sqrt()
    if excludes_self:
        far.fill_diagonal_(torch.inf)
    ordered = far.sort(dim=1, stable=True)
    return ordered.indices, far


def assert_exact(queries: Tensor, gallery: Tensor | None, k: int, tolerance: float, **options: int) -> None:
    """Every place holds an item whose true distance is that of the true ranking, but for float error."""
    found = find_neighbours(queries, gallery, k, **options)
    order, far = exact(queries, queries if gallery is None else gallery, gallery is None)
    true = far.gather(1, order[:, :k])
    torch.testing.assert_close(far.gather(1, found.indices), true, rtol=0, atol=tolerance)
    torch.testing.assert_close(found.distances.double(), true, rtol=0, atol=tolerance)
    assert all(len(set(row)) == k for row in found.indices.tolist())


def random(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("n", "k"), [(2, 1), (50, 49), (700, 3), (700, 100), (700, 400)])
def test_neighbours_of_a_random_set_are_those_of_float64(n: int, k: int) -> None:
    x = random(n, 8)
    assert_exact(x, None, k, tolerance=3e-6)
    found = find_neighbours(x, None, k)
    agree = found.indices == exact(x, x, True)[0][:, :k]
    assert agree[:, : min(k, 3)].all() and agree.double().mean() > 0.999
    assert found.excludes_self and found.exact and found.k == k and len(found) == n


def test_a_gallery_is_searched_without_excluding_anything() -> None:
    q, g = random(40, 8), random(300, 8, seed=1)
    assert torch.equal(find_neighbours(q, g, 7).indices, exact(q, g, False)[0][:, :7])
    assert torch.equal(find_neighbours(g[:5], g, 1).indices.flatten(), torch.arange(5))


@pytest.mark.parametrize("offset", [1.0, 1e3, 1e5])
def test_a_large_common_offset_does_not_drown_the_distances(offset: float) -> None:
    x = random(400, 16) + offset
    assert_exact(x, None, 20, tolerance=1e-5)


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
def test_tight_clusters_are_resolved_although_float32_products_cannot(spread: float) -> None:
    centres = random(20, 16)
    x = centres.repeat_interleave(20, 0) + spread * random(400, 16, seed=1)
    assert_exact(x, None, 15, tolerance=3e-6 * spread + 3e-8)


def test_copies_get_one_distance_and_follow_in_the_order_of_their_indices() -> None:
    base = random(97, 33)
    x = base[torch.randint(97, (1111,), generator=torch.Generator().manual_seed(1))]
    order, _ = exact(x, x, True)
    found = find_neighbours(x, None, 60)
    assert torch.equal(found.indices, order[:, :60])
    copies = (x[found.indices] == x[:, None]).all(-1)
    assert bool((found.distances[copies] == 0).all())


def test_all_rows_equal_gives_the_lowest_indices() -> None:
    found = find_neighbours(torch.full((300, 4), 0.3), None, 5)
    assert found.indices[0].tolist() == [1, 2, 3, 4, 5] and found.indices[299].tolist() == [0, 1, 2, 3, 4]
    assert found.distances.max() == 0


def test_ties_of_whole_numbers_are_broken_by_index_on_either_side_of_the_border() -> None:
    x = torch.randint(0, 3, (500, 6), generator=torch.Generator().manual_seed(0)).float()
    order, _ = exact(x, x, True)
    for k in (1, 2, 17, 100, 300):
        assert torch.equal(find_neighbours(x, None, k).indices, order[:, :k])


@pytest.mark.parametrize("memory", [1, 10_000, 10**9])
def test_the_size_of_blocks_does_not_change_the_result(memory: int) -> None:
    x = random(200, 8)
    assert torch.equal(find_neighbours(x, None, 9, memory=memory).indices, find_neighbours(x, None, 9).indices)


def test_blocks_are_no_larger_than_the_memory_allows() -> None:
    blocks: list[Block] = []
    search_blocks(random(500, 4), None, 3, blocks.append, memory=50_000)
    blocks.sort(key=lambda b: b.start)
    assert max(b.stop - b.start for b in blocks) * (500 * 4 + 3 * 24) <= 50_000
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])] and blocks[-1].stop == 500


def test_threads_do_not_change_the_result_nor_the_settings_around() -> None:
    x = random(900, 8)
    before = torch.get_num_threads()
    wanted = find_neighbours(x, None, 9)
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = find_neighbours(x.clone().requires_grad_(), None, 9, memory=10**6)
            assert torch.equal(found.indices, wanted.indices) and torch.get_num_threads() == threads
            started = ThreadPoolExecutor(1).submit(torch.get_num_threads).result()
            assert started == threads, "threads that start later use as many as before"
    finally:
        torch.set_num_threads(before)


def test_own_rows_are_left_out_of_a_gallery() -> None:
    x = random(60, 8)
    rows = torch.tensor([3, 59, 0])
    found = find_neighbours(x[rows], x, 59, own=rows)
    assert torch.equal(found.indices, exact(x, x, True)[0][rows][:, :59])


def test_low_precision_settings_of_the_program_around_are_not_used_and_not_changed() -> None:
    x = torch.nn.functional.normalize(random(600, 64), dim=1)
    order, _ = exact(x, x, True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = find_neighbours(x, None, 10)
        assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(RuntimeError, match="inside"), full_float32(x.device):
            assert torch.get_float32_matmul_precision() == "highest"
            raise RuntimeError("inside")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found.indices, order[:, :10])


def test_half_precision_embeddings_are_searched_as_float32() -> None:
    x = random(100, 8).half()
    assert torch.equal(find_neighbours(x, None, 5).indices, exact(x.float(), x.float(), True)[0][:, :5])


def test_k_beyond_the_candidates_is_an_error() -> None:
    for k in (0, 10):
        with pytest.raises(OodmlError, match="9 candidates"):
            find_neighbours(random(10, 2), None, k)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 900), st.data())
def test_selection_equals_a_stable_sort(rows: int, n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    levels = data.draw(st.sampled_from([1, 2, 7, 10**6]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = torch.from_numpy((generator.integers(-levels, levels + 1, (rows, n)) / 7).astype(np.float32))
    wanted, columns = smallest_stable(values, k)
    found, where, unsure = smallest(values, k, k)
    assert torch.equal(found, wanted) and torch.equal(where, columns) and not unsure.any()
    needed = data.draw(st.integers(1, k))
    found, where, unsure = _smallest_topk(values, k, needed)  # the path of a GPU: right wherever it claims to be
    assert torch.equal(found, wanted)
    assert torch.equal(where[~unsure, :needed], columns[~unsure, :needed])


def test_the_path_of_a_gpu_settles_ties_it_could_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodml.evaluation._search.smallest", _smallest_topk)
    x = torch.randint(0, 2, (400, 4), generator=torch.Generator().manual_seed(0)).float()
    order, _ = exact(x, x, True)
    for k in (1, 5, 30, 399):
        assert torch.equal(find_neighbours(x, None, k).indices, order[:, :k])


def test_copies_are_found_and_zero_equals_minus_zero() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [2.0, 1.0], [2.0, 1.5], [0.0, 1.0]])
    assert first_copies(x).tolist() == [0, 1, 0, 1, 4, 0]


@pytest.mark.long
def test_peak_memory_does_not_grow_with_the_square_of_the_set() -> None:
    program = """
import resource, torch, oodml
def peak(n):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 16, generator=g), torch.randint(n // 5, (n,), generator=g)
    oodml.evaluate(x, y, ["recall@1"], memory=1 / 64)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
small = peak(2_000)
print(peak(20_000) - small)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    growth = int(done.stdout)  # MiB; the matrix of all pairs would be 1,526
    assert growth < 150, f"peak memory grew by {growth} MiB from 2,000 to 20,000 rows"
