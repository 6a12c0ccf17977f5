"""Intervals against scipy, coverage of the paired one, and the sentences people read."""

import numpy as np
import pytest
from scipy import stats

import oodml
from oodml.evaluation.estimate import estimate
from oodml.reporting.words import comparison_sentence
from oodml.study.statistics import Comparison, ags_weights, compare


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


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["independent", "one seed is good or bad everywhere"])
def test_the_interval_covers_the_true_difference_at_its_stated_rate(seeds, shared):
    """`shared` is the part of a seed's variance that it has on all splits: the same initial head, the same order."""
    rng, fids, hits, widths, rounds = np.random.default_rng(3), [1.0, 4.0, 9.0, 20.0, 35.0], 0, [], 1500
    weights = ags_weights(fids)
    for _ in range(rounds):
        noise = np.sqrt(shared) * rng.normal(size=(2, 1, seeds)) + np.sqrt(1 - shared) * rng.normal(size=(2, 5, seeds))
        a, b = np.array([0.62, 0.60])[:, None, None] + 0.01 * noise
        result = compare("a", "b", fids, a, b)
        hits += result.low <= 0.02 <= result.high
        widths.append(result.high - result.low)
    assert 0.93 <= hits / rounds <= 0.97
    true_error = 0.01 * np.sqrt(2 * (shared + (1 - shared) * weights @ weights) / seeds)
    if seeds == 5:
        assert np.mean(widths) < 1.5 * 2 * 1.96 * true_error, "not absurdly wide either"


def test_a_seed_that_is_bad_on_every_split_widens_the_interval():
    """A real study of three splits: a seed apart by 4 points on all of them was taken for three independent ones."""
    by_seed = np.array([0.0149, 0.0226, 0.0538])
    found = compare("a", "b", [1.0, 2.0, 4.0], np.tile(by_seed, (3, 1)), np.zeros((3, 3)))
    low, high = stats.t.interval(0.95, 2, loc=by_seed.mean(), scale=stats.sem(by_seed))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert not found.distinguishable
    assert found.by_seed == pytest.approx(by_seed)


def test_the_sentence_says_what_can_be_said():
    three = (0.01, 0.02, 0.03)
    assert comparison_sentence(Comparison("a", "b", 0.001, -0.002, 0.004, three)) == (
        "a and b cannot be distinguished: 0.1 points of AGS between them (95 % interval -0.2 to +0.4 over 3 seeds)."
    )
    assert comparison_sentence(Comparison("a", "b", -0.02, -0.03, -0.01, three)) == (
        "b is 2.0 points of AGS ahead of a (95 % interval +1.0 to +3.0 over 3 seeds)."
    )
    for seeds in (three, ()):
        level = comparison_sentence(Comparison("a", "b", 0.0004, -0.002, 0.004, seeds))
        assert level == "a and b are level: less than 0.1 points of AGS between them."
    assert "one seed" in comparison_sentence(Comparison("a", "b", 0.02, float("nan"), float("nan"), (0.02,)))
    assert "over 2 seeds, and more would narrow it" in comparison_sentence(
        Comparison("a", "b", 0.02, -0.1, 0.14, three[:2])
    )
    assert "neither was trained here" in comparison_sentence(Comparison("a", "b", 0.02, float("nan"), float("nan")))


def test_methods_with_different_runs_are_not_compared():
    with pytest.raises(oodml.OodmlError, match="same splits and seeds"):
        compare("a", "b", [1.0, 2.0], np.zeros((2, 3)), np.zeros((2, 2)))


def test_a_bootstrap_over_seeds_comes_to_the_same():
    rng, fids = np.random.default_rng(4), [1.0, 5.0, 20.0]
    a, b = rng.normal(0.62, 0.02, (3, 300)), rng.normal(0.6, 0.01, (3, 300))
    found = compare("a", "b", fids, a, b)
    by_seed = ags_weights(fids) @ (a - b)
    drawn = by_seed[rng.integers(300, size=(20_000, 300))].mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03 * (high - low))
