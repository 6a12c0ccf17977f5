"""Distances of given splits, the i.i.d. baseline, agreement of two feature spaces, and the target's place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import oodml
from oodml import OodmlError, Split
from oodml.reporting.words import placement_sentence
from oodml.shift import (
    SplitDistances,
    across_datasets,
    agreement,
    build_splits,
    iid_baseline,
    place_target,
    save_splits,
    similar_pairs,
    thumbnail_likeness,
)

RNG = np.random.default_rng(0)
CLASSES = [f"c{i:02d}" for i in range(12)]
CENTRES = RNG.standard_normal((12, 8))
LABELS = np.repeat(np.arange(12), 30)
FEATURES = (CENTRES[LABELS] + 0.5 * RNG.standard_normal((360, 8))).astype(np.float32)
SPLIT = Split(CLASSES[:6], CLASSES[6:], name="half")


@pytest.mark.parametrize("mode", ["class-means", "images"])
def test_distances_are_those_of_the_definition(mode: str) -> None:
    space = SplitDistances(FEATURES, LABELS, CLASSES)
    means = np.stack([FEATURES[c == LABELS].mean(axis=0, dtype=np.float64) for c in range(12)])
    rows = (means[:6], means[6:]) if mode == "class-means" else (FEATURES[LABELS < 6], FEATURES[LABELS >= 6])
    found = space.measure(SPLIT, mode)
    assert found.fid == pytest.approx(oodml.fid(*rows), rel=1e-6)
    assert found.kid == pytest.approx(oodml.kid(*rows), rel=1e-6)
    assert (found.train_images, found.test_images) == (180, 180)


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(OodmlError, match="Unknown class in the test side of split 'mine': 'c99'"):
        SplitDistances(FEATURES, LABELS, CLASSES).fid(Split(CLASSES[:6], ["c99"], name="mine"))
    with pytest.raises(OodmlError, match="Unknown fid_mode"):
        SplitDistances(FEATURES, LABELS, CLASSES).fid(SPLIT, "pixels")


def test_across_data_sets() -> None:
    source, target = (Split(CLASSES[:6], CLASSES[6:], dataset=name, name="default") for name in ("one", "two"))
    split = across_datasets(source, target)
    assert (split.dataset, split.test_dataset, split.train, split.test) == ("one", "two", CLASSES[:6], CLASSES[6:])
    far = SplitDistances(FEATURES, LABELS, CLASSES, test=(FEATURES + 3, LABELS, CLASSES)).fid(split)
    near = SplitDistances(FEATURES, LABELS, CLASSES).fid(SPLIT)
    apart = (FEATURES[LABELS < 6].mean(axis=0) - FEATURES[LABELS >= 6].mean(axis=0)).astype(np.float64)
    assert far == pytest.approx(near - apart @ apart + np.square(apart - 3).sum(), rel=1e-4)
    with pytest.raises(OodmlError, match="two different datasets"):
        across_datasets(source, source)


@pytest.mark.parametrize("mode", ["class-means", "images"])
def test_the_iid_baseline_is_far_below_the_shift_between_classes(mode: str) -> None:
    found = iid_baseline(FEATURES, LABELS, class_names=CLASSES, repeats=5, fid_mode=mode)
    assert len(set(found.values)) == 5
    assert found.mean == pytest.approx(np.mean(found.values))
    assert found.sd == pytest.approx(np.std(found.values, ddof=1))
    assert found.mean < 0.2 * SplitDistances(FEATURES, LABELS, CLASSES).fid(SPLIT, mode)
    again = iid_baseline(FEATURES[::-1], LABELS[::-1], class_names=CLASSES, repeats=5, fid_mode=mode)
    np.testing.assert_allclose(again.values, found.values, rtol=1e-9)


def test_iid_halves_share_out_every_class() -> None:
    from oodml.shift.measure import _random_halves

    ids = np.repeat([0, 1, 3], [4, 5, 2])
    first = _random_halves(ids, np.random.default_rng(1))
    counts = np.bincount(ids[first], minlength=4)
    assert counts[0] == 2
    assert counts[1] in (2, 3)
    assert counts[3] == 1
    several = {tuple(_random_halves(ids, np.random.default_rng(i))) for i in range(20)}
    assert len(several) > 5


def test_iid_needs_classes_that_can_be_halved() -> None:
    with pytest.raises(OodmlError, match="two images or more"):
        iid_baseline(FEATURES[:5], np.arange(5))


def test_agreement_of_a_space_with_itself_and_with_noise(tmp_path: Path) -> None:
    space = SplitDistances(FEATURES, LABELS, CLASSES)
    splits = build_splits(FEATURES, LABELS, class_names=CLASSES, n_splits=4)
    save_splits(tmp_path / "splits.json", splits)
    same = agreement(splits, space, tmp_path / "splits.json", space)
    assert space.fid(f"{tmp_path}/splits.json#shift-2") == pytest.approx(splits[1].fid, rel=1e-9)
    assert same.rank_correlation == pytest.approx(1)
    assert same.curve_gap == 0
    assert same.same_side == [1.0] * len(splits)
    turned = FEATURES @ np.linalg.qr(RNG.standard_normal((8, 8)))[0]
    other = SplitDistances(turned, LABELS, CLASSES)
    rebuilt = build_splits(turned, LABELS, class_names=CLASSES, n_splits=4)
    found = agreement(splits, space, rebuilt, other)  # distances do not change when space is turned
    assert found.rank_correlation == pytest.approx(1)
    assert found.curve_gap < 1e-4
    noise = RNG.standard_normal(FEATURES.shape)
    unlike = agreement(
        splits,
        space,
        build_splits(noise, LABELS, class_names=CLASSES, n_splits=4, start="random", seed=5),
        SplitDistances(noise, LABELS, CLASSES),
    )
    assert unlike.rank_correlation < 0.9
    assert min(unlike.same_side) < 1
    assert all(0.5 <= chance <= 1 for chance in unlike.same_side_chance)


def sides(shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a training set: an axis along which it can be cut more or less apart."""
    order = np.argsort(FEATURES[:, 0] + RNG.standard_normal(len(FEATURES)) / max(shift, 1e-3))
    return order[:180], order[180:]


def test_a_target_falls_where_its_shift_is() -> None:
    splits = [("easy", *sides(0.01)), ("hard", *sides(100.0))]
    near = place_target(FEATURES, FEATURES[::2] + 0.001, splits)
    assert near.n == 90
    assert near.target.mean < near.splits[1].mean
    far = place_target(FEATURES, FEATURES[::2] + 4, splits)
    assert "farther than the hardest split, hard" in placement_sentence(far)
    between = place_target(FEATURES, FEATURES[::2] + np.float32([1.3] + [0] * 7), splits)
    assert "between easy" in placement_sentence(between)
    low, high = between.target.interval()
    assert low < between.target.mean < high
    assert len(between.target.values) == 20


def test_all_sets_are_measured_at_one_size_without_repeating_rows() -> None:
    """The bias of a smaller sample must not look like shift: two halves of one set are alike at any size."""
    big = RNG.standard_normal((4000, 16))
    small_target = RNG.standard_normal((120, 16))
    half = RNG.permutation(4000)
    placed = place_target(big, small_target, [("iid", half[:2000], half[2000:])])
    assert placed.n == 60
    low, high = placed.splits[0].interval()
    assert low < placed.target.mean < high
    whole = place_target(big[:50], big[:50], [], n=50)
    assert whole.target.mean == pytest.approx(0, abs=1e-9)  # all rows, none twice: the same set
    assert "no splits to compare" in placement_sentence(whole)


def test_impossible_placements_are_refused() -> None:
    with pytest.raises(OodmlError, match="at least 20 draws"):
        place_target(FEATURES, FEATURES, [], draws=5)
    with pytest.raises(OodmlError, match="at most that of the smallest set"):
        place_target(FEATURES, FEATURES[:40], [], n=50)
    with pytest.raises(OodmlError, match="same backbone"):
        place_target(FEATURES, FEATURES[:, :4], [])


def test_similar_pairs_agree_with_all_pairs() -> None:
    a, b = FEATURES[:70], np.concatenate([3 * FEATURES[5:8], FEATURES[100:150]])
    unit_a, unit_b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    cosine = unit_a @ unit_b.T
    expected = {(int(i), int(j)) for i, j in zip(*np.nonzero(cosine >= 0.9), strict=True)}
    found = similar_pairs(a, b, per_row=70, block=7)
    assert {(i, j) for i, j, _ in found} == expected
    assert {(5, 0), (6, 1), (7, 2)} <= {(i, j) for i, j, _ in found[:3]}
    assert [c for *_, c in found] == sorted((c for *_, c in found), reverse=True)
    assert len({j for _, j, _ in similar_pairs(a, b, per_row=1)}) == len(similar_pairs(a, b, per_row=1))


def test_thumbnails_distinguish_copies_from_other_images() -> None:
    images = RNG.integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    brighter = (images * 0.7 + 20).astype(np.uint8)
    assert thumbnail_likeness(images, brighter).min() > 0.99
    assert thumbnail_likeness(images, images[:, :, ::-1]).min() > 0.99
    assert thumbnail_likeness(images, images[[1, 2, 3, 0]]).max() < 0.5
    flat = np.zeros_like(images)
    assert np.array_equal(thumbnail_likeness(flat, images), np.zeros(4))
