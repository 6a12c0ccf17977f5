"""The forecast: interpolation, honest intervals, no silent extrapolation."""

import numpy as np
import pytest

import oodml
from oodml.study.forecast import forecast, leave_one_out


def test_it_interpolates_between_the_measured_splits():
    result = forecast([0, 10, 20, 40], [0.8, 0.7, 0.6, 0.4], 30)
    assert result.score == pytest.approx(0.5)
    assert result.inside
    assert result.mean_absolute_error == pytest.approx(0, abs=1e-12)


def test_leave_one_out_predicts_each_inner_split_from_the_others():
    fids, scores = [3.0, 1.0, 2.0, 5.0], [0.5, 0.8, 0.6, 0.4]
    by_hand = [(0.8 + 0.5) / 2 - 0.6, 0.6 + (0.4 - 0.6) / 3 - 0.5]
    np.testing.assert_allclose(leave_one_out(fids, scores), by_hand)


def test_the_interval_covers_a_held_out_split_at_about_its_stated_rate():
    rng, hits, total = np.random.default_rng(0), 0, 0
    for _ in range(600):
        fids = np.sort(rng.uniform(0, 100, 9))
        curve = 0.85 - 0.2 * (fids / 100) ** 1.3 + rng.normal(0, 0.008, 9)
        held = rng.integers(1, 8)
        result = forecast(np.delete(fids, held), np.delete(curve, held), fids[held])
        hits, total = hits + (result.low <= curve[held] <= result.high), total + 1
    assert 0.91 <= hits / total <= 0.995


@pytest.mark.parametrize("target", [-1.0, 41.0])
def test_outside_the_measured_range_it_says_so(target):
    result = forecast([0, 10, 20, 40], [0.8, 0.7, 0.6, 0.4], target)
    assert not result.inside
    assert np.isnan(result.low)
    assert "no forecast" in result.sentence


def test_too_few_splits_are_refused():
    with pytest.raises(oodml.OodmlError, match="three splits"):
        forecast([1, 2], [0.5, 0.4], 1.5)
