from __future__ import annotations

import time
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oodml
from oodml import OodmlError, make_batch_sampler
from oodml.data.samplers import base as samplers_base
from oodml.data.samplers.base import ClassIndex, _distinct
from oodml.data.samplers.spc import SPC


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 3 + 1, sizes))


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=30),
    groups=st.integers(2, 40),
    n=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_spc_keeps_its_rules_for_any_class_sizes(sizes: list[int], groups: int, n: int, seed: int):
    labels = labels_of(sizes, seed)
    sampler = make_batch_sampler("spc", labels, batch_size=groups * n, samples_per_class=n, seed=seed)
    batch = next(iter(sampler))
    assert batch.dtype == np.int64 and len(batch) == groups * n
    of_class = labels[batch].reshape(groups, n)
    assert (of_class == of_class[:, :1]).all()  # whole class groups
    classes, uses = np.unique(of_class[:, 0], return_counts=True)
    assert len(classes) == min(groups, len(sizes))  # distinct classes while there are enough
    assert uses.max() - uses.min() <= 1  # then used again, evenly
    assert bool(sampler.notes) == (groups > len(sizes))
    size_of = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    for group in batch.reshape(groups, n):
        assert len(set(group)) == min(n, size_of[labels[group[0]]])  # distinct images in a group
    for c, u in zip(classes, uses, strict=True):
        images = batch[labels[batch] == c]
        _, counts = np.unique(images, return_counts=True)
        assert len(counts) == min(u * n, size_of[c])  # and across the groups of a class
        assert counts.max() - counts.min() <= 1


def test_spc_with_the_46_classes_of_a_hard_cars_split():
    labels = labels_of([80] * 46)
    batch = next(iter(make_batch_sampler("spc", labels, batch_size=112, samples_per_class=2)))
    assert len(set(batch)) == 112 and len(set(labels[batch])) == 46


def test_distinct_draws_are_uniform_permutation_prefixes():
    rng = np.random.default_rng(0)
    draws = _distinct(rng, np.full(60_000, 4), 2)
    _, counts = np.unique(draws[:, 0] * 4 + draws[:, 1], return_counts=True)
    assert len(counts) == 12 and abs(counts / 5000 - 1).max() < 0.06  # all 12 ordered pairs, equally often
    full = _distinct(rng, np.array([3, 5]), 5)
    assert sorted(full[0, :3]) == [0, 1, 2] and sorted(full[1]) == [0, 1, 2, 3, 4]


def test_every_image_and_class_is_drawn_equally_often():
    labels = labels_of([4, 8, 16] * 4)
    sampler = make_batch_sampler("spc", labels, batch_size=8, samples_per_class=2)
    drawn = np.concatenate([b for e in range(300) for b in _epoch(sampler, e)])
    per_class = np.bincount(np.unique(labels, return_inverse=True)[1][drawn])
    assert per_class.max() / per_class.min() < 1.15  # classes equally, whatever their size
    counts = np.bincount(drawn, minlength=len(labels))[labels == np.unique(labels)[1]]
    assert counts.max() / counts.min() < 1.3


def _epoch(sampler, epoch: int) -> list[np.ndarray]:
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("name", ["spc", "spc-r"])
def test_length_seed_and_epoch(name: str):
    labels = labels_of([7] * 20)
    sampler = make_batch_sampler(name, labels, batch_size=16, seed=3)
    first, second, again = _epoch(sampler, 0), _epoch(sampler, 1), _epoch(sampler, 0)
    assert len(sampler) == len(first) == 140 // 16
    assert np.array_equal(first, again) and not np.array_equal(first, second)
    other = make_batch_sampler(name, labels, batch_size=16, seed=4)
    assert not np.array_equal(first, list(other))
    assert len(make_batch_sampler(name, labels_of([2, 2]), batch_size=16)) == 1
    sampler.set_epoch(0)
    walk = [*sampler, *sampler]  # without set_epoch the next epoch follows by itself
    assert np.array_equal(walk, [*first, *second])


@pytest.mark.parametrize("ahead", [1, 3, 16])
def test_batches_drawn_ahead_are_those_of_one_by_one(ahead: int, monkeypatch):
    """However many are drawn at once; a walk that is sent elsewhere on its way does not go on with what it had."""
    labels = labels_of([7] * 20)
    sampler = make_batch_sampler("spc", labels, batch_size=16, seed=3)
    expected = [[sampler.draw(np.random.default_rng((3, epoch, number))) for number in range(8)] for epoch in range(3)]
    monkeypatch.setattr(samplers_base, "_AHEAD", ahead)
    assert np.array_equal(list(sampler), expected[0])
    walk = iter(sampler)
    assert np.array_equal(list(islice(walk, 2)), expected[1][:2])
    sampler.set_epoch(2)
    assert np.array_equal(list(islice(walk, 3)), expected[2][:3])
    sampler.load_state_dict({**sampler.state_dict(), "position": 6})
    assert np.array_equal(list(walk), expected[2][6:])


def test_a_sampler_that_looks_at_embeddings_draws_after_it_has_seen_them():
    class Looking(SPC):
        uses_embeddings = True
        shown = 0

        def update(self, indices, embeddings):
            self.shown += 1

        def draw(self, rng):
            return np.full(4, self.shown)

    sampler = Looking(labels_of([7] * 20), batch_size=4)
    drawn = []
    for batch in islice(sampler, 3):
        drawn.append(int(batch[0]))
        sampler.update(np.arange(4), np.zeros((4, 2)))
    assert drawn == [0, 1, 2]


@pytest.mark.parametrize("name", ["spc", "spc-r"])
@pytest.mark.parametrize("stop", [0, 1, 5, 8])
def test_resuming_in_the_middle_of_an_epoch_is_exact(name: str, stop: int):
    labels = labels_of([7] * 20)
    whole = make_batch_sampler(name, labels, batch_size=16, seed=3)
    whole.set_epoch(2)
    expected = list(whole)
    broken = make_batch_sampler(name, labels, batch_size=16, seed=3)
    broken.set_epoch(2)
    seen = list(islice(broken, stop))
    state = broken.state_dict()
    resumed = make_batch_sampler(name, labels, batch_size=16, seed=3)
    resumed.load_state_dict(state)
    resumed.set_epoch(2)  # as a training loop does at the top of every epoch
    assert np.array_equal([*seen, *resumed], expected)
    assert resumed.epoch == 3 and resumed.position == 0
    with pytest.raises(OodmlError, match="seed=3, this one has 4"):
        make_batch_sampler(name, labels, batch_size=16, seed=4).load_state_dict(state)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_one_batch_in_whole_class_groups(world: int):
    labels = labels_of([9] * 12)
    alone = list(make_batch_sampler("spc", labels, batch_size=32, samples_per_class=4, seed=1))
    shares = [
        list(make_batch_sampler("spc", labels, batch_size=32, samples_per_class=4, seed=1, rank=r, world_size=world))
        for r in range(world)
    ]
    for step, batch in enumerate(alone):
        parts = [share[step] for share in shares]
        assert np.array_equal(np.concatenate(parts), batch)
        for part in parts:
            groups = labels[part].reshape(-1, 4)
            assert (groups == groups[:, :1]).all()


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=12), b=st.integers(3, 40), seed=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_spc_r_has_two_classes_and_a_mate(sizes: list[int], b: int, seed: int):
    labels = labels_of(sizes, seed)
    batch = next(iter(make_batch_sampler("spc-r", labels, batch_size=b, seed=seed)))
    assert len(batch) == b and len(set(labels[batch])) >= 2
    assert labels[batch[-1]] in labels[batch[:-1]]
    size_of = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    for c in set(labels[batch]):
        images = batch[labels[batch] == c]
        assert len(set(images)) == min(len(images), size_of[c])


def test_spc_r_is_class_balanced():
    labels = labels_of([2, 40, 400])
    sampler = make_batch_sampler("spc-r", labels, batch_size=20)
    drawn = np.concatenate([b[:-1] for e in range(40) for b in _epoch(sampler, e)])
    shares = np.unique(labels[drawn], return_counts=True)[1] / len(drawn)
    assert abs(shares - 1 / 3).max() < 0.02


def test_bad_settings_are_explained():
    labels = labels_of([5] * 8)
    with pytest.raises(OodmlError, match=r"samples_per_class=5 does not divide batch_size=112.*Try batch_size=110"):
        make_batch_sampler("spc", labels, samples_per_class=5)
    for name in ("spc", "spc-r"):
        with pytest.raises(OodmlError, match="at least two classes"):
            make_batch_sampler(name, np.zeros(50, dtype=np.int64))
        with pytest.raises(OodmlError, match="rank must be between"):
            make_batch_sampler(name, labels, rank=2, world_size=2)
        with pytest.raises(OodmlError, match="seed must be 0 or"):
            make_batch_sampler(name, labels, seed=-1)
    with pytest.raises(OodmlError, match="holds one class"):
        make_batch_sampler("spc", labels, batch_size=4, samples_per_class=4)
    with pytest.raises(OodmlError, match="cannot be shared in whole groups among 3"):
        make_batch_sampler("spc", labels, batch_size=16, samples_per_class=2, world_size=3)
    with pytest.raises(OodmlError, match="shared evenly among 3"):
        make_batch_sampler("spc-r", labels, batch_size=16, world_size=3)
    with pytest.raises(OodmlError, match="flat array of integers"):
        make_batch_sampler("spc", labels.astype(float))
    with pytest.raises(OodmlError, match="Did you mean 'spc'"):
        make_batch_sampler("scp", labels)
    with pytest.raises(OodmlError, match="Unknown option"):
        make_batch_sampler("spc", labels, sed=1)
    assert {"spc", "spc-r"} <= set(oodml.list_batch_samplers())


def test_the_global_generator_is_left_alone():
    np.random.seed(0)  # noqa: NPY002 - the point of the test
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    list(make_batch_sampler("spc", labels_of([5] * 80), batch_size=16))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_drawing_is_quick():
    labels = np.repeat(np.arange(11_318), 5)
    sampler = make_batch_sampler("spc", labels)
    start = time.perf_counter()
    count = sum(1 for _ in sampler)
    assert count / (time.perf_counter() - start) > 500  # thousands a second on an idle core
    assert len(ClassIndex(labels)) == 11_318
