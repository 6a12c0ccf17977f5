"""Intervals against scipy, coverage of the paired bootstrap, and the sentences people read."""

import numpy as np
import pytest
from scipy import stats

import oodml
from oodml.study.statistics import Comparison, ags_weights, compare, estimate


def test_the_interval_is_scipys_t_interval():
    x = np.random.default_rng(1).normal(0.6, 0.02, 5)
    ours = estimate(x)
    low, high = stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x))
    assert (ours.mean - ours.half_width, ours.mean + ours.half_width) == pytest.approx((low, high))


def test_one_value_has_no_interval():
    one = estimate([0.5])
    assert one.mean == 0.5
    assert np.isnan(one.half_width)


def test_weights_are_the_trapezoidal_rule():
    rng = np.random.default_rng(2)
    fids, scores = rng.uniform(1, 90, 8), rng.uniform(size=8)
    order = np.argsort(fids)
    x = (fids[order] - fids.min()) / np.ptp(fids)
    assert ags_weights(fids) @ scores == pytest.approx(np.trapezoid(scores[order], x))
    assert ags_weights(fids).sum() == pytest.approx(1)


def test_the_interval_covers_the_true_difference_at_about_its_stated_rate():
    rng, fids, hits, rounds = np.random.default_rng(3), [1.0, 4.0, 9.0, 20.0, 35.0], 0, 400
    for i in range(rounds):
        a, b = rng.normal(0.62, 0.01, (5, 5)), rng.normal(0.60, 0.01, (5, 5))
        result = compare("a", "b", fids, a, b, draws=1000, seed=i)
        hits += result.low <= 0.02 <= result.high
    assert 0.90 <= hits / rounds <= 0.98


def test_the_sentence_says_what_can_be_said():
    assert "cannot be told apart" in Comparison("a", "b", 0.001, -0.002, 0.004).sentence
    assert Comparison("a", "b", -0.02, -0.03, -0.01).sentence.startswith("b is 2.0 points of AGS ahead of a")
    assert "one seed" in Comparison("a", "b", 0.02, float("nan"), float("nan")).sentence


def test_methods_with_different_runs_are_not_compared():
    with pytest.raises(oodml.OodmlError, match="same splits and seeds"):
        compare("a", "b", [1.0, 2.0], np.zeros((2, 3)), np.zeros((2, 2)))


def test_with_many_seeds_the_bootstrap_agrees_with_the_theory_of_sums():
    rng, fids = np.random.default_rng(4), [1.0, 5.0, 20.0]
    a, b = rng.normal(0.62, 0.02, (3, 300)), rng.normal(0.6, 0.01, (3, 300))
    found = compare("a", "b", fids, a, b)
    weights, paired = ags_weights(fids), a - b
    error = np.sqrt(np.sum(weights**2 * stats.sem(paired, axis=1) ** 2))
    low, high = stats.norm.interval(0.95, loc=weights @ paired.mean(axis=1), scale=error)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))
