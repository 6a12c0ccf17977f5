"""The study table: grids, gains, AGS ranking, methods that lack a run."""

import numpy as np
import pytest

import oodml
from oodml.study.leaderboard import ranking
from oodml.study.table import Row, StudyTable, with_untrained


def rows(skip=()):
    rng = np.random.default_rng(0)
    return [
        Row(method, split, fid, seed, {"recall@1": level - fid / 100 + rng.normal(0, 0.001)}, {"recall@1": 0.3})
        for method, level in (("good", 0.9), ("bad", 0.8))
        for split, fid in (("hard", 30.0), ("easy", 5.0), ("medium", 12.0))
        for seed in (0, 1, 2)
        if (method, split, seed) not in skip
    ]


def test_splits_stand_in_order_of_rising_shift():
    table = StudyTable(rows())
    assert table.splits == ["easy", "medium", "hard"]
    assert table.scores("recall@1").shape == (2, 3, 3)
    assert np.all(np.diff(table.scores("recall@1").mean(2), axis=1) < 0)


def test_ags_of_the_table_is_the_mean_of_ags_over_seeds():
    table = StudyTable(rows())
    by_hand = np.mean([oodml.ags(table.fids, table.scores("recall@1")[0][:, s]) for s in range(3)])
    ranking = table.ags("recall@1")
    assert list(ranking) == ["good", "bad"]
    assert ranking["good"].mean == pytest.approx(by_hand)


def test_a_method_that_lacks_a_run_is_not_ranked():
    table = StudyTable(rows(skip={("good", "hard", 1)}))
    assert list(table.ags("recall@1")) == ["bad"]
    assert table.cell("recall@1", "good", "hard").n == 2


def test_gain_and_difference_to_the_mean():
    table = StudyTable(rows())
    np.testing.assert_allclose(table.gain("recall@1"), table.scores("recall@1") - 0.3)
    np.testing.assert_allclose(table.difference_to_mean("recall@1").sum(axis=0), 0, atol=1e-12)


def test_a_clear_lead_is_called_one():
    assert StudyTable(rows()).compare("recall@1", "good", "bad").distinguishable


def test_unknown_metric_and_empty_study_are_refused():
    with pytest.raises(oodml.OodmlError, match="Did you mean 'recall@1'"):
        StudyTable(rows()).scores("recal@1")
    with pytest.raises(oodml.OodmlError, match="no finished run"):
        StudyTable([])


def with_generic(metrics=("recall@1",)):
    generic = [
        Row("generic", split, fid, 0, dict.fromkeys(metrics, 0.85 - fid / 100), kind="external")
        for split, fid in (("hard", 30.0), ("easy", 5.0), ("medium", 12.0))
    ]
    return StudyTable([*rows(), *generic])


def test_an_encoder_without_seeds_is_ranked_and_compared_with_every_seed_of_the_others():
    table = with_generic()
    assert list(table.ags("recall@1")) == ["good", "generic", "bad"]
    assert table.ags("recall@1")["generic"].n == 1
    found = table.compare("recall@1", "good", "generic")
    ags = table.ags("recall@1")
    assert found.difference == pytest.approx(ags["good"].mean - ags["generic"].mean)
    assert found.distinguishable
    assert [(c.first, c.second) for c in table.comparisons("recall@1")] == [
        ("good", "generic"),
        ("good", "bad"),
        ("generic", "bad"),
    ]


def test_an_encoder_without_seeds_adds_none_to_those_of_the_methods():
    trained = [Row("margin", split, fid, 3, {"recall@1": 0.9}) for split, fid in (("easy", 5.0), ("hard", 30.0))]
    scored = [Row("own", row.split, row.fid, 0, {"recall@1": 0.8}, kind="external") for row in trained]
    table = StudyTable(trained + scored)
    assert table.seeds == [3] and table.scores("recall@1").shape == (2, 2, 1)
    np.testing.assert_array_equal(table.means("recall@1"), [[0.9, 0.9], [0.8, 0.8]])
    assert StudyTable(scored).seeds == [0]


def test_an_encoder_without_seeds_does_not_shift_the_mean_of_the_methods():
    table = with_generic()
    difference = table.difference_to_mean("recall@1")
    np.testing.assert_allclose(difference[:2], StudyTable(rows()).difference_to_mean("recall@1"))
    np.testing.assert_allclose(difference[2], table.means("recall@1")[2] - table.means("recall@1")[:2].mean(axis=0))


def test_an_encoder_that_lacks_a_metric_hides_it_from_nobody():
    table = with_generic(metrics=("map@r",))
    assert table.metrics == ["recall@1"]
    assert list(table.ags("recall@1")) == ["good", "bad"]


def test_the_untrained_backbone_is_a_row_of_the_table():
    table = StudyTable(with_untrained(with_generic().rows))
    assert table.kinds["untrained"] == "untrained"
    np.testing.assert_allclose(table.means("recall@1")[table.methods.index("untrained")], 0.3)
    assert list(table.ags("recall@1")) == ["good", "generic", "bad", "untrained"]


def test_several_backbones_have_a_row_each():
    rows = [
        Row("margin", "easy", 1.0, 0, {"recall@1": 0.9}, {"recall@1": score}, about={"backbone": backbone})
        for backbone, score in (("a", 0.2), ("b", 0.4))
    ]
    added = with_untrained(rows)[2:]
    assert [(row.method, row.kind, row.scores["recall@1"]) for row in added] == [
        ("untrained a", "untrained", 0.2),
        ("untrained b", "untrained", 0.4),
    ]


def test_a_shift_that_was_not_measured_is_none_and_integrates_nothing():
    rows = [Row("a", f"s{i}", None, 0, {"recall@1": 0.1 * i}) for i in (1, 2)]
    table = StudyTable(rows)
    assert table.fids == [None, None] and table.shifts == 0
    assert table.mean_over_splits("recall@1")["a"].mean == pytest.approx(0.15)
    with pytest.raises(oodml.OodmlError, match="measure the shift"):
        table.ags("recall@1")
    assert StudyTable([Row("a", "s0", 0.0, 0, {"recall@1": 0.1}), *rows]).splits == ["s0", "s1", "s2"]


@pytest.mark.parametrize(("fids", "expected"), [((10.0, 20.0, 50.0), 0.325), ((5.0, 5.0, 5.0), 0.3)])
def test_untrained_scores_are_means_over_runs_and_summed_up_as_methods_are(fids, expected):
    """Networks from scratch differ by their seed: no run's own untrained score stands for all."""
    rows = [
        Row(method, f"s{i}", fid, seed, {"recall@1": 0.9}, {"recall@1": 0.2 + i / 10 + shift})
        for i, fid in enumerate(fids)
        for method, seed, shift in (("a", 0, -0.02), ("a", 1, 0.02), ("b", 0, 0.01), ("b", 1, -0.01))
    ]
    table = StudyTable(with_untrained(rows))
    np.testing.assert_allclose(table.means("recall@1")[table.methods.index("untrained")], [0.2, 0.3, 0.4])
    assert ranking(table, "recall@1")["untrained"].mean == pytest.approx(expected)
    lacking = [*rows[4:], *(Row("a", "s0", fids[0], seed, {"recall@1": 0.9}) for seed in (0, 1))]
    assert "untrained" not in ranking(StudyTable(with_untrained(lacking)), "recall@1")


def test_two_encoders_that_were_never_trained_have_no_spread_to_be_told_apart_by():
    own = [
        Row("own", split, fid, 0, {"recall@1": 0.7 - fid / 100}, kind="external")
        for split, fid in (("hard", 30.0), ("easy", 5.0), ("medium", 12.0))
    ]
    found = StudyTable([*with_generic().rows, *own]).compare("recall@1", "generic", "own")
    assert found.difference > 0
    assert np.isnan(found.low) and not found.distinguishable
