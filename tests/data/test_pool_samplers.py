"""gc, ddm and frd: batches chosen from a pool by embeddings."""

from __future__ import annotations

import io
from itertools import islice

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

import oodml
from oodml import OodmlError, make_batch_sampler

NAMES = ["gc", "ddm", "frd"]
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(30), 8))
EMBEDDINGS = np.random.default_rng(2).normal(size=(240, 6)) + np.random.default_rng(3).normal(size=(30, 6))[LABELS]


def sampler_of(name: str, shown: np.ndarray = EMBEDDINGS, **options):
    options = {"batch_size": 16, "seed": 3, "pool": 64} | options
    sampler = make_batch_sampler(name, LABELS, **options)
    sampler.update(np.arange(len(shown)), shown)
    return sampler


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_batches_are_whole_class_groups_of_the_pool(name: str, n: int):
    sampler = sampler_of(name, samples_per_class=n)
    pool = sampler.draw_groups(np.random.default_rng((3, 0, 0)), 64 // n)
    batch = next(iter(sampler)).reshape(-1, n)
    assert batch.dtype == np.int64 and len(batch) == 16 // n
    assert (LABELS[batch] == LABELS[batch][:, :1]).all()
    assert len(set(map(tuple, batch))) == len(batch) and set(map(tuple, batch)) <= set(map(tuple, pool))
    assert len(np.unique(batch)) == 16  # distinct images: there are more of them than the pool holds


def test_gc_takes_the_farthest_image_every_time():
    sampler = sampler_of("gc", samples_per_class=2)
    for number, batch in enumerate(islice(sampler, 5)):
        pool = sampler.draw_groups(np.random.default_rng((3, 0, number)), 32).tolist()
        groups = batch.reshape(-1, 2).tolist()
        inside = list(groups[0])
        for group in groups[1:]:
            outside = [image for each in pool for image in each if image not in inside]
            reach = [min(np.linalg.norm(EMBEDDINGS[p] - EMBEDDINGS[q]) for q in inside) for p in outside]
            assert outside[int(np.argmax(reach))] in group
            inside += group


def test_gc_covers_more_of_the_data_than_spc():
    def coverage(name):  # how far an image is from the nearest of the batch
        sampler = sampler_of(name) if name == "gc" else make_batch_sampler("spc", LABELS, batch_size=16, seed=3)
        return np.mean([_distances(EMBEDDINGS, EMBEDDINGS[batch]).min(1).max() for batch in sampler])

    assert coverage("gc") < coverage("spc")


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(a[:, None] - b, axis=2)


def _ddm(pool: np.ndarray, batch: np.ndarray) -> float:
    top = _distances(pool, pool).max()
    centres = (np.arange(50) + 0.5) * top / 50

    def histogram(rows):
        pairs = [np.linalg.norm(rows[i] - rows[j]) for i in range(len(rows)) for j in range(i)]
        return np.histogram(pairs, bins=50, range=(0, top))[0]

    return wasserstein_distance(centres, centres, histogram(pool), histogram(batch))


@pytest.mark.parametrize(("name", "oracle"), [("ddm", _ddm), ("frd", oodml.fid)])
def test_the_candidate_most_like_the_pool_is_taken(name: str, oracle):
    sampler = sampler_of(name, candidates=4)
    taken = next(iter(sampler))
    rng = np.random.default_rng((3, 0, 0))
    groups = sampler.draw_groups(rng, 32)
    pool = sampler.memory[groups].astype(float)
    found = []

    def remembered(rows, candidates):
        found.append((candidates, dissimilarity(rows, candidates)))
        return found[-1][1]

    dissimilarity, sampler.dissimilarity = sampler.dissimilarity, remembered
    sampler.choose(rng, pool)
    ((candidates, values),) = found
    expected = [oracle(pool.reshape(64, 6), pool.reshape(64, 6)[rows]) for rows in candidates]
    assert candidates.shape == (4, 16) and len({tuple(sorted(rows)) for rows in candidates}) == 4
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert np.array_equal(taken, groups.reshape(-1)[candidates[np.argmin(expected)]])


@pytest.mark.parametrize("name", NAMES)
def test_equal_embeddings_still_make_a_batch(name: str):
    assert len(np.unique(next(iter(sampler_of(name, np.zeros((240, 6))))))) == 16


@pytest.mark.parametrize("name", NAMES)
def test_it_follows_the_embeddings_and_nothing_else(name: str):
    first = [list(sampler_of(name)) for _ in range(2)]
    assert np.array_equal(*first)
    moved = np.random.default_rng(9).permutation(EMBEDDINGS)
    assert not np.array_equal(first[0], list(sampler_of(name, moved)))
    assert not np.array_equal(first[0], list(sampler_of(name, seed=4)))
    one_by_one = sampler_of(name, moved)
    for start in range(0, 240, 16):  # as they come out of a training step
        one_by_one.update(np.arange(start, start + 16), EMBEDDINGS[start : start + 16])
    assert np.array_equal(first[0], list(one_by_one))


@pytest.mark.parametrize("name", NAMES)
def test_resuming_in_the_middle_of_an_epoch_needs_no_new_embeddings(name: str):
    expected = list(sampler_of(name))
    broken = sampler_of(name)
    seen = list(islice(broken, 7))
    file = io.BytesIO()
    torch.save(broken.state_dict(), file)
    file.seek(0)
    resumed = make_batch_sampler(name, LABELS, batch_size=16, seed=3, pool=64)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert np.array_equal([*seen, *resumed], expected)


@pytest.mark.parametrize("name", NAMES)
def test_processes_share_a_batch_in_whole_class_groups(name: str):
    alone = list(sampler_of(name))
    shares = [list(sampler_of(name, rank=rank, world_size=2)) for rank in range(2)]
    for batch, *parts in zip(alone, *shares, strict=True):
        assert np.array_equal(np.concatenate(parts), batch)


def test_a_pool_larger_than_the_data_is_all_of_it():
    sampler = sampler_of("gc", pool=100_000)
    assert sampler.pool_groups == 120
    assert len(np.unique(sampler.draw_groups(np.random.default_rng(0), 120))) == 240


@pytest.mark.parametrize("name", NAMES)
def test_bad_settings_are_explained(name: str):
    with pytest.raises(OodmlError, match=r"pool >= batch_size=16, got 15"):
        sampler_of(name, pool=15)
    sampler = make_batch_sampler(name, LABELS, batch_size=16)
    with pytest.raises(OodmlError, match=r"240 of 240 images have none yet: call update"):
        next(iter(sampler))
    sampler.update(np.arange(200), EMBEDDINGS[:200])
    with pytest.raises(OodmlError, match="40 of 240"):
        next(iter(sampler))
    with pytest.raises(OodmlError, match=r"embeddings \(m, d\), got shapes \(3,\) and \(2, 6\)"):
        sampler.update(np.arange(3), EMBEDDINGS[:2])


@pytest.mark.parametrize("name", ["ddm", "frd"])
def test_without_candidates_there_is_nothing_to_choose(name: str):
    with pytest.raises(OodmlError, match="must be at least 1; got 0"):
        sampler_of(name, candidates=0)
