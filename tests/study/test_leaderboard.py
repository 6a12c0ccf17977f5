"""The leaderboard: who stands where, what is not ranked, what people read."""

import json

import numpy as np
import pytest

import oodml
from oodml.reporting.words import leaderboard_markdown, leaderboard_with_sentences
from oodml.study.leaderboard import leaderboard, ranking
from oodml.study.table import Row, StudyTable


def table(splits=4, seeds=3, skip=()):
    rng = np.random.default_rng(0)
    rows = [
        Row(method, f"s{i}", 10.0 * i, seed, {"recall@1": level - 0.04 * i + rng.normal(0, 0.001), "nmi": 0.5})
        for method, level in (("b", 0.8), ("a", 0.9))
        for i in range(splits)
        for seed in range(seeds)
        if (method, i) not in skip
    ]
    own = [
        Row("mine", f"s{i}", 10.0 * i, 0, {"recall@1": 0.85 - 0.04 * i, "nmi": 0.4}, kind="external")
        for i in range(splits)
    ]
    return StudyTable([*rows, *own])


def test_every_metric_is_ranked_by_ags_and_is_plain_json():
    board = json.loads(json.dumps(leaderboard_with_sentences(leaderboard(table())), allow_nan=False))
    standing = board["metrics"]["recall@1"]
    assert [(row["rank"], row["method"], row["kind"]) for row in standing["ranking"]] == [
        (1, "a", "trained"),
        (2, "mine", "external"),
        (3, "b", "trained"),
    ]
    expected = table().ags("recall@1")["a"]
    assert standing["ranking"][0]["score"]["mean"] == pytest.approx(expected.mean)
    assert standing["ranking"][1]["score"]["half_width"] is None
    assert set(standing["ranking"][0]["splits"]) == {"s0", "s1", "s2", "s3"}
    assert standing["neighbours"][0]["sentence"].startswith("a is ")
    assert standing["leave_one_out_error"] < 0.005


def test_a_method_that_lacks_a_split_is_named_but_not_ranked():
    standing = leaderboard(table(skip={("a", 2)}), ["recall@1"])["metrics"]["recall@1"]
    assert [row["method"] for row in standing["ranking"]] == ["mine", "b"]
    assert standing["not_ranked"] == ["a"]
    assert "Not ranked, since a split is missing: a." in leaderboard_markdown(leaderboard(table(skip={("a", 2)})))


def test_a_method_of_the_plan_without_any_run_is_named():
    unfinished = StudyTable(table().rows, {"run7": "DiVA", "run8": "DiVA", "run9": "b"})
    assert leaderboard(unfinished, ["nmi"])["metrics"]["nmi"]["not_ranked"] == ["DiVA"]
    assert "Not ranked, since a split is missing: DiVA." in leaderboard_markdown(leaderboard(unfinished))


def test_one_split_is_ranked_by_its_mean():
    only = table(splits=1)
    assert list(ranking(only, "recall@1")) == ["a", "mine", "b"]
    board = leaderboard(only)
    assert board["metrics"]["recall@1"]["ranked_by"] == "mean"
    assert board["metrics"]["recall@1"]["leave_one_out_error"] is None


def test_splits_of_one_shift_are_ranked_by_the_mean_over_all_of_them():
    scores = {"a": (0.9, 0.1), "b": (0.6, 0.6), "c": (0.7,)}
    rows = [
        Row(method, f"s{i}", 0.0, seed, {"recall@1": value + 0.02 * seed})
        for method, values in scores.items()
        for i, value in enumerate(values)
        for seed in (0, 1)
    ]
    board = leaderboard(StudyTable(rows))["metrics"]["recall@1"]
    assert [(row["method"], row["score"]["n"]) for row in board["ranking"]] == [("b", 2), ("a", 2)]
    assert [row["score"]["mean"] for row in board["ranking"]] == pytest.approx([0.61, 0.51])
    assert board["not_ranked"] == ["c"]


def test_people_read_per_cent():
    text = leaderboard_markdown(leaderboard(table(), ["recall@1"]), "Mine")
    lines = text.splitlines()
    assert lines[0] == "# Mine"
    row = next(line for line in lines if line.startswith("| 2 |"))
    assert row.split("|")[2].strip() == "mine"
    assert row.split("|")[5].strip() == "85.0"
    assert "predicted from the others" in text


def test_an_interval_is_shown_no_further_than_a_share_can_be_and_kept_whole_in_the_data():
    rows = [
        Row("a", split, fid, seed, {"recall@1": 0.97 + 0.02 * seed})
        for split, fid in (("s0", 0.0), ("s1", 9.0))
        for seed in (0, 1)
    ]
    board = leaderboard(StudyTable(rows))
    assert "| 1 | a | trained | 98.0 [85.3–100.0] | 98.0 [85.3–100.0] |" in leaderboard_markdown(board)
    assert board["metrics"]["recall@1"]["ranking"][0]["score"]["half_width"] == pytest.approx(0.127, abs=1e-3)


def test_an_unknown_metric_is_refused():
    with pytest.raises(oodml.OodmlError, match="Did you mean 'nmi'"):
        leaderboard(table(), ["nmii"])
