"""Error rates of thresholds against sorting every pair in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oodml import OodmlError
from oodml.evaluation import thresholds as module
from oodml.evaluation.thresholds import fnmr_at_fmr, threshold_drift

RATES = (0.5, 0.29, 1e-1, 1e-2, 1e-4)


def sorted_pairs(x, labels, y=None, y_labels=None):
    """Squared distances of same-class and different-class pairs, by brute force."""
    x, labels = np.asarray(x, dtype=np.float64), np.asarray(labels)
    if y is None:
        pairs = [(x[i], x[j], labels[i] == labels[j]) for i in range(len(x)) for j in range(i)]
    else:
        y = np.asarray(y, dtype=np.float64)
        pairs = [(a, b, la == lb) for a, la in zip(x, labels, strict=True) for b, lb in zip(y, y_labels, strict=True)]
    distance = np.array([((a - b) ** 2).sum() for a, b, _ in pairs])
    same = np.array([s for _, _, s in pairs], dtype=bool)
    return np.sort(distance[same]), np.sort(distance[~same])


def largest_threshold(different, rate):
    """The largest τ² among the distances (or ∞) with a share of at most `rate` below it, tried one by one."""
    allowed = [
        t for t in [*different, math.inf] if 1000 * (different < t).sum() <= round(1000 * rate, 6) * len(different)
    ]
    return max(allowed)


def points(n, d, seed, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=25).filter(lambda y: 1 < len(set(y)) < len(y)),
    st.integers(0, 10**6),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([2, 7, 2048]),
)
def test_rates_equal_sorting_all_pairs_with_many_ties(labels, seed, dtype, tile):
    x = torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, (len(labels), 2))).to(dtype) * 4
    x = torch.cat([x, -x.sum(dim=0, keepdim=True)])  # a mean of zero keeps small integers exact
    labels = [*labels, 0]
    same, different = sorted_pairs(x, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module._TILE, "cpu", tile)
        found = fnmr_at_fmr(x, labels, RATES)
    for key, rate in zip(found, RATES, strict=True):
        threshold = largest_threshold(different, rate)
        assert found[key] == pytest.approx((same >= threshold).mean(), abs=1e-12), key
    unresolved = [k for k, rate in zip(found, RATES, strict=True) if rate * len(different) < 1]
    assert found.notes.get("unresolved", []) == unresolved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_selected_distances_are_the_order_statistics(dtype):
    x, labels = points(90, 5, 1, dtype), torch.arange(90) % 9
    _, different = sorted_pairs(x, labels)
    pairs = module.pair_set(x, labels)
    ranks = [0, 1, 17, 500, len(different) - 1, len(different)]
    assert pairs.different == len(different)
    found = module.different_at_ranks(pairs, ranks)
    assert found == pytest.approx([*different[ranks[:-1]], math.inf], rel=1e-5 if dtype == torch.float32 else 1e-12)
    assert module.count_below(pairs, found, same=False) == ranks  # no ties: exactly that many lie below


def test_keys_are_the_contract():
    found = fnmr_at_fmr(points(60, 4, 0), np.arange(60) % 6)
    assert list(found) == ["fnmr@fmr=1e-1", "fnmr@fmr=1e-2", "fnmr@fmr=1e-3", "fnmr@fmr=1e-4"]
    assert list(fnmr_at_fmr(points(60, 4, 0), np.arange(60) % 6, [0.025])) == ["fnmr@fmr=2.5e-2"]
    assert found["fnmr@fmr=1e-1"] <= found["fnmr@fmr=1e-2"] <= found["fnmr@fmr=1e-3"] <= found["fnmr@fmr=1e-4"]


def test_query_and_gallery_pairs(monkeypatch):
    monkeypatch.setitem(module._TILE, "cpu", 8)
    x, y = points(20, 3, 2, torch.float64), points(33, 3, 3, torch.float64)
    x_labels, y_labels = ["b", "a", "c", "a"] * 5, ["a", "c", "d"] * 11
    same, different = sorted_pairs(x, x_labels, y, y_labels)
    found = fnmr_at_fmr(x, x_labels, RATES, gallery=y, gallery_labels=np.array(y_labels))
    for key, rate in zip(found, RATES, strict=True):
        assert found[key] == pytest.approx((same >= largest_threshold(different, rate)).mean(), abs=1e-12), key


def test_drift_applies_the_fixed_threshold_to_the_other_set():
    x, labels = points(80, 6, 4, torch.float64), np.arange(80) % 8
    x[:, :3] += 2 * points(8, 3, 5, torch.float64)[labels]
    other, other_labels = 0.5 * points(60, 6, 6, torch.float64), ["u", "v", "w"] * 20
    found = threshold_drift(x, labels, other, other_labels, fmr=1e-2)
    same, different = sorted_pairs(x, labels)
    other_same, other_different = sorted_pairs(other, other_labels)
    fixed, refit = largest_threshold(different, 1e-2), largest_threshold(other_different, 1e-2)
    expected = {
        "threshold": math.sqrt(fixed),
        "fmr": (different < fixed).mean(),
        "fnmr": (same >= fixed).mean(),
        "other_fmr": (other_different < fixed).mean(),
        "other_fnmr": (other_same >= fixed).mean(),
        "other_threshold": math.sqrt(refit),
        "other_fnmr_refit": (other_same >= refit).mean(),
    }
    assert dict(found) == pytest.approx(expected, rel=1e-9)
    assert found["other_fmr"] > 10 * found["fmr"]  # the other set is denser: the threshold no longer holds


def test_the_same_set_has_no_drift():
    x, labels = points(50, 4, 7), np.arange(50) % 5
    found = threshold_drift(x, labels, x, labels, fmr=0.05)
    assert found["fmr"] == found["other_fmr"] <= 0.05
    assert found["fnmr"] == found["other_fnmr"] == found["other_fnmr_refit"]
    assert found["threshold"] == found["other_threshold"]


@pytest.mark.parametrize(
    ("labels", "kind"), [([0, 0, 0], "different-class"), ([0, 1, 2], "same-class"), ([0], "class")]
)
def test_sets_without_pairs_of_a_kind_give_nan_and_a_warning(labels, kind):
    with pytest.warns(UserWarning, match=kind):
        found = fnmr_at_fmr(points(len(labels), 2, 0), labels)
    assert all(math.isnan(v) for v in found.values())
    assert found.notes["undefined"] == list(found)


def test_wrong_calls_say_what_is_expected():
    x, labels = points(6, 3, 0), [0, 0, 0, 1, 1, 1]
    with pytest.raises(OodmlError, match="between 0 and 1"):
        fnmr_at_fmr(x, labels, [1.5])
    with pytest.raises(OodmlError, match="go together"):
        fnmr_at_fmr(x, labels, gallery=x)
    with pytest.raises(OodmlError, match="one model"):
        threshold_drift(x, labels, x[:, :2], labels)
    with pytest.raises(OodmlError, match="one label"):
        fnmr_at_fmr(x, labels, gallery=x, gallery_labels=[0])
