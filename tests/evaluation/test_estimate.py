"""Intervals as people see them: those of shares stay where shares can be."""

import math

import pytest

from oodml.evaluation.estimate import estimate, share_interval, share_text


def test_an_interval_inside_the_range_is_shown_as_it_is():
    found = estimate([0.50, 0.51, 0.52])
    assert share_interval(found.mean, found.half_width) == (
        found.mean - found.half_width,
        found.mean + found.half_width,
    )
    assert share_text(found.mean, found.half_width) == "51.0 ± 2.5"


@pytest.mark.parametrize(
    ("values", "told"),
    [((0.96, 0.98), "97.0 [84.3–100.0]"), ((0.01, 0.03), "2.0 [0.0–14.7]"), ((0.0, 1.0), "50.0 [0.0–100.0]")],
)
def test_over_two_seeds_it_ends_where_a_share_does(values, told):
    found = estimate(values)
    assert found.mean - found.half_width < 0 or found.mean + found.half_width > 1, "the statistics are not cut"
    assert share_text(found.mean, found.half_width) == told


def test_a_single_value_has_no_interval_and_a_mean_outside_is_not_moved():
    assert share_text(0.5, math.nan) == "50.0"
    assert share_text(1.0, 0.0) == "100.0 ± 0.0"
    assert share_interval(-0.01, 0.02) == (-0.01, 0.01)  # AMI, chance corrected
