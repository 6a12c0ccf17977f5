"""Construction of splits: what swapping finds, what every series promises, and what is refused."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oodml
from oodml import OodmlError, Split, build_splits
from oodml.shift import load_splits, save_splits
from oodml.shift._features import group_by_class
from oodml.shift._partition import Partition
from oodml.shift.builder import default_swaps, evenly
from oodml.shift.construction import measured, remove, swap


def clusters(classes: int, images: int, dims: int, seed: int, apart: float = 6.0) -> tuple[np.ndarray, np.ndarray]:
    """Classes in two groups, every other one in each, `apart` from one another."""
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal((classes, dims))
    centre[::2, 0] += apart
    labels = np.repeat(np.arange(classes), images)
    return centre[labels] + 0.3 * rng.standard_normal((len(labels), dims)), labels


def names_of(count: int) -> list[str]:
    return [f"class-{i:03d}" for i in range(count)]


@pytest.mark.parametrize("mode", ["class-means", "images"])
def test_swapping_recovers_the_hardest_partition(mode: Any) -> None:
    features, labels = clusters(20, 8, 6, seed=0)
    splits = build_splits(features, labels, class_names=names_of(20), removal=False, fid_mode=mode, n_splits=4)
    one_group = set(names_of(20)[::2])
    hardest = splits[-1]
    assert set(hardest.train) in (one_group, set(names_of(20)) - one_group)
    assert splits[0].train == names_of(20)[:10]
    assert splits[0].provenance["stage"] == "start"


def test_the_hardest_of_all_partitions_is_found_among_few_classes() -> None:
    features, labels = clusters(8, 6, 4, seed=1)
    means = np.stack([features[labels == c].mean(axis=0) for c in range(8)])
    every = [
        oodml.fid(means[list(side)], means[[c for c in range(8) if c not in side]])
        for side in itertools.combinations(range(8), 4)
    ]
    built = build_splits(features, labels, removal=False, n_splits=3)
    assert built[-1].fid == pytest.approx(max(every), rel=1e-9)


def test_reverse_reaches_easier_splits_and_removal_harder_ones() -> None:
    features, labels = clusters(24, 6, 5, seed=2)
    splits = build_splits(features, labels, reverse=True, n_splits=6)
    stages = [split.provenance["stage"] for split in splits]
    start = stages.index("start")
    assert stages[0] == "reverse"
    assert stages[-1] == "removal"
    assert splits[0].fid < splits[start].fid < splits[-1].fid
    steps = [step["step"] for step in splits.progression if step["stage"] in ("reverse", "start", "swap")]
    assert steps == sorted(steps)


def test_swap_exchanges_what_equations_2_and_3_pick() -> None:
    features, labels = clusters(12, 4, 3, seed=3, apart=1.0)
    partition = Partition(group_by_class(features, labels, names_of(12)), "class-means")
    start = measured(partition, np.arange(6), np.arange(6, 12), "start")
    means = np.stack([features[labels == c].mean(axis=0) for c in range(12)])
    a, b = means[:6].mean(axis=0), means[6:].mean(axis=0)
    score = np.linalg.norm(means - a, axis=1) - np.linalg.norm(means - b, axis=1)
    leaves_train, leaves_test = int(np.argmax(score[:6])), 6 + int(np.argmax(-score[6:]))
    first = swap(partition, start, 1, patience=1)[0]
    assert set(first.train) == (set(range(6)) - {leaves_train}) | {leaves_test}
    assert set(first.test) == (set(range(6, 12)) - {leaves_test}) | {leaves_train}


def test_a_class_rests_after_it_was_exchanged() -> None:
    features, labels = clusters(16, 4, 3, seed=4, apart=0.0)
    partition = Partition(group_by_class(features, labels, names_of(16)), "class-means")
    start = measured(partition, np.arange(8), np.arange(8, 16), "start")
    states = [start, *swap(partition, start, 1, patience=3, rest=4)]
    moves = [set(after.train) ^ set(before.train) for before, after in itertools.pairwise(states)]
    assert len(moves) >= 3
    for i, move in enumerate(moves):
        for later in moves[i + 1 : i + 4]:
            assert not move & later


def test_removal_drops_the_nearest_and_stops_at_the_limit() -> None:
    features, labels = clusters(12, 5, 3, seed=5)
    partition = Partition(group_by_class(features, labels, names_of(12)), "class-means")
    start = measured(partition, np.arange(0, 12, 2), np.arange(1, 12, 2), "start")
    states = remove(partition, start, 1, least_images=30)
    means = np.stack([features[labels == c].mean(axis=0) for c in range(12)])
    to_test = np.linalg.norm(means[::2] - means[1::2].mean(axis=0), axis=1)
    assert set(start.train) - set(states[0].train) == {2 * int(to_test.argmin())}
    assert [len(state.train) for state in states] == [5, 4, 3]  # 30 of 60 images remain
    assert [len(state.test) for state in states] == [5, 4, 3]


@pytest.mark.parametrize("mode", ["class-means", "images"])
@pytest.mark.parametrize("dims", [3, 80])
def test_every_recorded_distance_is_exact(mode: Any, dims: int) -> None:
    """Low-rank updates and rotations against a distance computed from the rows, at every chosen split."""
    features, labels = clusters(20, 6, dims, seed=6)
    with pytest.warns(UserWarning, match="of 50 splits"):  # that is, all there are
        splits = build_splits(features, labels, class_names=names_of(20), fid_mode=mode, reverse=True, n_splits=50)
    means = np.stack([features[labels == c].mean(axis=0) for c in range(20)])
    assert len(splits) > 5
    for split in splits:
        sides = [[int(name[-3:]) for name in side] for side in (split.train, split.test)]
        rows = [means[side] if mode == "class-means" else features[np.isin(labels, side)] for side in sides]
        assert split.fid == pytest.approx(oodml.fid(*rows), rel=1e-7)
        apart = rows[0].mean(axis=0) - rows[1].mean(axis=0)
        assert split.provenance["approximate_fid"] == pytest.approx(apart @ apart, rel=1e-9)


@given(
    classes=st.integers(4, 14),
    images=st.integers(1, 5),
    dims=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    reverse=st.booleans(),
    mode=st.sampled_from(["class-means", "images"]),
    start=st.sampled_from(["half", "random"]),
    keep=st.sampled_from([0.3, 0.5, 0.9]),
    count=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_promises(
    classes: int, images: int, dims: int, seed: int, reverse: bool, mode: Any, start: Any, keep: float, count: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, classes * images)])
    features = rng.standard_normal((len(labels), dims)).astype(np.float32)
    names = names_of(classes)
    options: dict[str, Any] = {
        "class_names": names, "start": start, "reverse": reverse, "fid_mode": mode, "keep": keep, "n_splits": count,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        splits = build_splits(features, labels, **options)
        shuffle = rng.permutation(len(labels))
        renamed = rng.permutation(classes)  # class numbers are arbitrary too: only names count
        moved_names = [names[i] for i in np.argsort(renamed)]
        again = build_splits(features[shuffle], renamed[labels[shuffle]], **{**options, "class_names": moved_names})
    assert again == splits  # bit for bit, distances included
    assert again.progression == splits.progression
    fids = [split.fid for split in splits]
    assert all(a < b for a, b in itertools.pairwise(fids))
    assert [s.provenance["stage"] for s in splits].count("start") == 1
    assert 1 <= len(splits) <= count
    half = classes // 2
    for split in splits:
        assert not set(split.train) & set(split.test)
        assert set(split.val) < set(split.train)
        assert len(split.val) == (max(2, -(-len(split.train) // 4)) if len(split.train) >= 4 else 0)
        if split.provenance["stage"] != "removal":
            assert (len(split.train), len(split.test)) == (half, classes - half)
        assert half - len(split.train) == classes - half - len(split.test)
        kept = np.isin(labels, [names.index(name) for name in split.train + split.test]).sum()
        assert kept >= keep * len(labels)
        assert kept == sum(split.provenance["images"])


def test_start_from_a_split_leaves_other_classes_out() -> None:
    features, labels = clusters(12, 4, 3, seed=7)
    names = names_of(12)
    start = Split(train=names[:4], test=names[6:10], name="mine")
    splits = build_splits(features, labels, class_names=names, start=start, n_splits=3)
    assert splits[0].train == names[:4]
    assert splits[0].provenance["start"] == "mine"
    assert all(set(s.train) | set(s.test) <= set(names[:4] + names[6:10]) for s in splits)


def test_start_from_a_split_leaves_classes_without_images_out() -> None:
    features, labels = clusters(12, 4, 3, seed=7)
    there, names = labels != 3, names_of(12)
    start = Split(train=names[:6], test=names[6:], name="mine")
    splits = build_splits(features[there], labels[there], class_names=np.array(names), start=start, n_splits=3)
    assert splits[0].train == [name for name in names[:6] if name != names[3]] and splits[0].test == names[6:]


def test_series_survives_a_file(tmp_path: Any) -> None:
    features, labels = clusters(12, 4, 3, seed=8)
    splits = build_splits(features, labels, class_names=names_of(12), n_splits=3, dataset="toy")
    save_splits(tmp_path / "splits.json", splits)
    assert load_splits(tmp_path / "splits.json") == splits


def test_steps_follow_the_papers() -> None:
    assert default_swaps(200) == default_swaps(196) == 2
    assert default_swaps(22_634) == 1000
    assert default_swaps(10) == 1


@given(st.lists(st.floats(0, 1000, width=32), min_size=1, max_size=9, unique=True), st.data())
@settings(max_examples=80, deadline=None)
def test_even_choice_is_the_best_of_all_choices(values: list[float], data: st.DataObject) -> None:
    values = sorted(values)
    count = data.draw(st.integers(1, len(values)))
    must = data.draw(st.integers(0, len(values) - 1))
    chosen = evenly(values, count, must)
    assert must in chosen
    assert chosen == sorted(set(chosen))

    def unevenness(picked: tuple[int, ...] | list[int]) -> float:
        return sum((values[b] - values[a]) ** 2 for a, b in itertools.pairwise(picked))

    wanted = {0, must, len(values) - 1}
    if count >= len(wanted):
        assert len(chosen) == count
        every = [c for c in itertools.combinations(range(len(values)), count) if wanted <= set(c)]
        assert unevenness(chosen) == pytest.approx(min(map(unevenness, every)))


def test_too_few_levels_are_told() -> None:
    features, labels = clusters(4, 3, 2, seed=9)
    with pytest.warns(UserWarning, match=r"of 40 splits"):
        build_splits(features, labels, n_splits=40)


FEATURES, LABELS = clusters(6, 3, 2, seed=10)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"features": np.full_like(FEATURES, np.nan)}, "NaN or infinite"),
        ({"labels": LABELS[:-1]}, "18 rows of features need 18 labels"),
        ({"class_names": ["a", "b"]}, "positions in class_names"),
        ({"class_names": ["a", "b", "c", "d", "e", "a"]}, "more than once"),
        ({"features": FEATURES[:9], "labels": LABELS[:9]}, "at least four classes"),
        ({"start": "thirds"}, "no split file thirds"),
        ({"start": Split(["0", "1"], ["2", "nine"])}, "Unknown class in the test side of start: 'nine'"),
        ({"start": Split(["0", "1"], ["2"])}, "at least four classes, two per side"),
        ({"n_splits": 0}, "n_splits"),
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"swaps_per_step": 0}, "swaps_per_step"),
        ({"patience": 0}, "patience"),
        ({"seed": -1}, "seed must be 0 or"),
        ({"fid_mode": "image"}, "Did you mean 'images'"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], told: str) -> None:
    options = {"features": FEATURES, "labels": LABELS, **changes}
    with pytest.raises(OodmlError, match=told):
        build_splits(options.pop("features"), options.pop("labels"), **options)


def test_a_start_may_be_the_path_of_a_split_file(tmp_path: Path) -> None:
    start = Split(["0", "1"], ["2", "3"], name="mine")
    save_splits(tmp_path / "splits.json", [start, Split(["3", "1"], ["2", "0"], name="other")])
    built = build_splits(FEATURES, LABELS, start=tmp_path / "splits.json#mine", n_splits=1)
    assert built == build_splits(FEATURES, LABELS, start=start, n_splits=1)
    assert built[0].train == ["0", "1"]
