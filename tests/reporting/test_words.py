"""The answer in words says no more than the runs can tell."""

import numpy as np
import pytest

from oodml.reporting.report_data import read_report_data
from oodml.reporting.words import _lead, answer
from oodml.study.table import Row, StudyTable

FIDS = (10.0, 40.0, 90.0)


def words(leads, noise, seeds=5, untrained=None, fids=FIDS):
    """Two methods; `ahead` leads by `leads` points on each split; the seeds scatter by `noise` points."""
    rng = np.random.default_rng(3)
    rows = [
        Row(
            method,
            f"s{i}",
            fid,
            seed,
            {"recall@1": (60 - 5 * i + (leads[i] if method == "ahead" else 0) + rng.normal(0, noise)) / 100},
            {"recall@1": untrained[i] / 100} if untrained else {},
        )
        for method in ("behind", "ahead")
        for i, fid in enumerate(fids)
        for seed in range(seeds)
    ]
    return " ".join(answer(read_report_data(StudyTable(rows), None, None, None)))


def test_a_lead_that_grows_is_said_to_grow():
    text = words([1.2, 2.0, 3.4], noise=0.01)
    assert text.startswith("ahead generalises best: AGS 56.7 ± 0.0 (recall@1).")
    assert "Its lead over behind grows from 1.2 to 3.4 points as the shift grows." in text


def test_a_lead_that_shrinks_is_said_to_shrink():
    assert "shrinks from 3.4 to 1.2 points" in words([3.4, 2.0, 1.2], noise=0.02)


def test_a_constant_lead_is_not_said_to_move():
    text = words([2.0, 2.0, 2.0], noise=0.3)
    assert "generalises best" in text
    assert "within the noise" in text
    assert "grows from" not in text
    assert "shrinks" not in text


def test_a_lead_within_the_noise_is_called_that():
    text = words([0.05, 0.05, 0.05], noise=2.0)
    assert "generalises best" not in text
    assert "within the noise" in text
    assert "cannot be distinguished" in text


def test_one_seed_claims_no_lead():
    text = words([5.0, 5.0, 5.0], noise=0.0, seeds=1)
    assert "one seed cannot show" in text
    assert "generalises best" not in text


def test_the_gain_over_the_untrained_backbone_is_stated_for_both_ends():
    text = words([2.0, 2.0, 2.0], noise=0.01, untrained=[54.0, 52.0, 51.0])
    assert "gains +8.0 points at the smallest shift and +1.0 at the largest" in text


def test_a_single_split_claims_nothing_about_shift():
    text = words([3.0], noise=0.1, fids=(10.0,))
    assert text.startswith("ahead scores best on this one split: recall@1 63.")
    assert "points ahead of behind" in text
    assert "One split cannot say" in text


def test_splits_of_one_shift_count_by_their_mean():
    text = words([-1.0, 9.0], noise=0.1, fids=(10.0, 10.0))
    assert text.startswith("ahead scores best on these 2 splits of one shift: recall@1 61.")
    assert "Splits of one shift cannot say" in text


def test_splits_without_an_fid_are_not_said_to_be_of_one_shift():
    text = words([-1.0, 9.0], noise=0.1, fids=(None, None))
    assert text.startswith("ahead scores best on these 2 splits whose shift was not measured: recall@1 61.")
    assert "of one shift" not in text and "write the FID into their files" in text


def lead_on_one_split(*rows):
    made = [Row(name, "s0", 5.0, seed, {"recall@1": value}, kind=kind) for name, seed, value, kind in rows]
    return answer(read_report_data(StudyTable(made), None, None, None))[0]


def test_an_encoder_on_one_split_stands_against_every_seed_of_a_trained_method():
    seeds = [("m", seed, 0.9 + seed / 1000, "trained") for seed in range(5)]
    assert "It is 40.2 ± 0.2 points ahead of own." in lead_on_one_split(("own", 0, 0.5, "external"), *seeds)
    alone = lead_on_one_split(("own", 0, 0.5, "external"), ("other", 0, 0.4, "external"))
    assert "10.0 points ahead of other; neither was trained" in alone


def test_methods_without_a_common_seed_on_one_split_claim_no_lead():
    rows = [(name, seed, value, "trained") for name, value in (("a", 0.6), ("b", 0.5)) for seed in (0, 2)]
    rows = [(name, seed + (name == "b"), value, kind) for name, seed, value, kind in rows]
    assert "has no seed in common with b" in lead_on_one_split(*rows)


def test_methods_that_lack_a_split_are_not_ranked():
    rows = [Row("a", "s0", 1.0, 0, {"recall@1": 0.5}), Row("b", "s1", 2.0, 0, {"recall@1": 0.5})]
    assert answer(read_report_data(StudyTable(rows), None, None, None))[0].startswith(
        "No method has finished on every split"
    )


@pytest.mark.parametrize("seeds", [(1, 2), (0, 1)])
def test_an_encoder_scored_once_may_lead_the_trained_ones(seeds):
    """It has no seeds, whatever those of the trained methods are: nothing is said about a change of its lead."""
    rows = [Row("SwAV", f"s{i}", fid, 0, {"recall@1": 0.9}, kind="external") for i, fid in enumerate(FIDS)]
    rows += [Row("m", f"s{i}", f, s, {"recall@1": 0.5 + s / 999}) for i, f in enumerate(FIDS) for s in seeds]
    text = " ".join(answer(read_report_data(StudyTable(rows), None, None, None)))
    assert text == "SwAV generalises best: AGS 90.0 (recall@1)."


def test_the_change_of_a_lead_is_judged_seed_by_seed():
    """A seed that shifts both ends alike says nothing against a change; one that moves an end alone does."""
    alike = np.array([[1.0, 3.0, 5.0], [2.0, 4.0, 6.0], [4.1, 6.0, 7.9]])
    apart = np.array([[1.0, 3.0, 5.0], [2.0, 4.0, 6.0], [9.0, 6.0, 3.0]])

    def said(lead):
        rows = [
            Row(method, f"s{i}", fid, seed, {"recall@1": 0.6 + (lead[i, seed] / 100 if method == "ahead" else 0)})
            for method in ("behind", "ahead")
            for i, fid in enumerate(FIDS)
            for seed in range(3)
        ]
        return " ".join(_lead(read_report_data(StudyTable(rows), None, None, None), "ahead", "behind"))

    assert "grows from 3.0 to 6.0 points" in said(alike)
    assert "a change that is within the noise" in said(apart)
