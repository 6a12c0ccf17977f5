"""The forecast: interpolation, honest intervals, no silent extrapolation."""

import numpy as np
import pytest

import oodml
from oodml.reporting.words import forecast_sentence
from oodml.study.forecast import forecast, forecast_file, leave_one_out, study_errors
from oodml.study.table import Row, StudyTable


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
    rows = [Row("m", f"s{fid}", fid, 0, {"nmi": score}) for fid, score in ((0, 0.8), (10, 0.7), (20, 0.6), (40, 0.4))]
    sentence = forecast_sentence(forecast_file(StudyTable(rows), "m", "nmi", (1, 2), target=("new", target)))
    assert f"is {'above' if target > 0 else 'below'} the measured range 0.0 to 40.0: no forecast." in sentence
    assert f"with m is {40 if target > 0 else 80}.0 %" in sentence


def test_no_interval_reaches_beyond_what_a_score_can_be():
    found = forecast([0, 10, 20, 40], [0.95, 0.2, 0.98, 0.9], 30)
    assert (found.low, found.high) == (0.0, 1.0)
    scores = {0.0: 0.95, 10.0: 0.2, 20.0: 0.98, 40.0: 0.9}
    curve = StudyTable([Row("m", f"s{fid}", fid, 0, {"nmi": score}) for fid, score in scores.items()])
    sentence = forecast_sentence(forecast_file(curve, "m", "nmi", (1, 2), target=("new", 30.0)))
    assert "95 % interval 0.0 to 100.0" in sentence
    rows = [
        Row("a", f"s{i}", 10.0 * i, seed, {"recall@1": value})
        for i, values in enumerate(([0.99, 0.8], [0.02, 0.2], [0.97, 0.99]))
        for seed, value in enumerate(values)
    ]
    held = forecast_file(StudyTable(rows), "a", "recall@1", (10, 20), target=("new", 15.0))
    assert all(0 <= each["low"] <= each["high"] <= 1 for each in [*held["curve"], held["target"]])


def test_too_few_splits_are_refused():
    with pytest.raises(oodml.OodmlError, match="three splits"):
        forecast([1, 2], [0.5, 0.4], 1.5)


SHAPES = {
    "straight": lambda x: 0.85 - 0.3 * x,
    "bent": lambda x: 0.9 - 0.4 * x**2,
    "levelling off": lambda x: 0.5 + 0.35 * np.exp(-3 * x),
    "flat": lambda x: 0 * x + 0.6,
}


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("splits", [5, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_interval_covers_a_new_split_at_about_its_stated_rate(shape, splits, level):
    """Noise of the scores over curves of several shapes; a bent curve may only make the interval too wide."""
    rng, hits, rounds = np.random.default_rng(splits), 0, 250
    for _ in range(rounds):
        x = np.sort(rng.uniform(0, 1, splits + 1))
        y = SHAPES[shape](x) + rng.normal(0, 0.01, splits + 1)
        held = rng.integers(1, splits)
        found = forecast(np.delete(x, held), np.delete(y, held), x[held], level)
        hits += found.low <= y[held] <= found.high
    assert level - 0.06 <= hits / rounds
    if shape in ("straight", "flat"):
        assert hits / rounds <= 1 - 0.25 * (1 - level)


def curve_table(seeds=(0, 1)):
    rng = np.random.default_rng(5)
    return StudyTable(
        Row(method, f"s{i}", 10.0 * i, seed, {"recall@1": level - 0.05 * i + rng.normal(0, 0.004)})
        for method, level in (("a", 0.9), ("b", 0.8))
        for i in range(5)
        for seed in seeds
    )


def test_a_study_checks_its_own_forecast_by_leaving_each_split_out():
    table = curve_table()
    found = study_errors(table, "recall@1")
    y = table.scores("recall@1").mean(axis=2)[0]
    by_hand = [abs((y[i - 1] + y[i + 1]) / 2 - y[i]) for i in (1, 2, 3)]  # the splits stand at equal distances
    assert found["a"] == pytest.approx(np.mean(by_hand))
    assert set(found) == {"a", "b"}


def test_the_file_holds_curve_target_and_error():
    held = forecast_file(curve_table(), "a", "recall@1", (10, 20), target=("new", 25.0))
    assert [point["split"] for point in held["curve"]] == ["s0", "s1", "s2", "s3", "s4"]
    assert held["curve"][0]["low"] < held["curve"][0]["value"] < held["curve"][0]["high"]
    assert held["target"]["inside"]
    assert held["target"]["low"] < held["target"]["value"] < held["target"]["high"]
    assert f"At FID 25.0 expect {100 * held['target']['value']:.1f} % with a (95 % interval" in forecast_sentence(held)
    assert "for scatter about the curve alone: which classes a target has" in forecast_sentence(held)
    assert held["gallery"] == [10, 20]
    assert held["leave_one_out_error"] > 0


def test_other_shifts_replace_those_of_the_table_and_one_seed_has_no_interval():
    fids = {f"s{i}": 100.0 + i for i in range(5)}
    held = forecast_file(curve_table(seeds=(0,)), "a", "recall@1", (10, 20), fids, ("new", 25.0))
    assert held["curve"][0]["fid"] == 100.0
    assert held["curve"][0]["low"] is None
    assert not held["target"]["inside"]
    assert held["target"]["low"] is None
