"""How an audit is sized to its time, and the sentences it says."""

from itertools import pairwise

import numpy as np
import pytest

from oodml.shift import Placement, SharedImage, Split, Spread
from oodml.study.audit import runs as audit_runs
from oodml.study.audit.runs import side_by_side
from oodml.study.audit.sizing import LADDER, Clock, Cost, affordable_views, choose_size, reduction
from oodml.study.audit.words import Expectation, expectations, runner_up, target_words, verdict
from oodml.study.grid import PlannedRun
from oodml.study.leaderboard import METRIC
from oodml.study.store import Store
from oodml.study.table import Row, StudyTable


def test_the_ladder_falls_and_the_largest_rung_that_fits_is_taken():
    work = [rung.methods * rung.splits * rung.steps for rung in LADDER]
    assert all(a > b for a, b in pairwise(work))
    costs = [Cost(1.0, 0.01)] * 5
    sizes = [choose_size(seconds, 2, costs, 8) for seconds in (1, 30, 100, 300, 1000, 10_000)]
    amounts = [size.methods * size.splits * size.steps for size in sizes]
    assert amounts == sorted(amounts)
    assert sizes[0] == LADDER[-1]
    assert sizes[-1] == LADDER[0]


def test_a_chosen_size_leaves_time_for_two_seeds_where_any_does():
    for seconds in np.linspace(40, 5000, 60):
        costs = [Cost(2.0, 0.02), Cost(2.0, 0.03), Cost(3.0, 0.1)]
        size = choose_size(seconds, 2, costs, 6)
        work = size.splits * sum(cost.of(size.steps) for cost in costs[: size.methods])
        assert work / 2 <= seconds or size == choose_size(0, 2, costs, 6)
        assert size.methods <= 3
        assert size.splits <= 6


def test_the_time_kept_back_follows_the_speed_of_the_machine():
    clock = Clock(1)
    assert clock.kept_back == pytest.approx(19.8)
    clock.learn(0.2)  # a quiet machine: more of the minute is for training
    assert clock.kept_back == pytest.approx(10.8)
    clock.learn(3.0)
    assert clock.kept_back == pytest.approx(49.8)


def test_a_short_audit_is_sized_for_the_one_process_that_it_trains_in():
    assert side_by_side(Clock(1), 2) == 1
    assert side_by_side(Clock(10), 2) == 2


def test_a_run_that_turned_the_end_of_the_time_into_a_failure_is_the_last_one(tmp_path, monkeypatch):
    clock, store, ended = Clock(1), Store(tmp_path), []

    def engine(runs, store):
        for run in runs:
            ended.append(run.id)
            clock.began -= 60  # the time is up, and the run could not know
            store.record_failure(run.id, "RuntimeError: cannot join thread before it is started")
            yield run, "failed"

    monkeypatch.setattr(audit_runs, "LocalEngine", lambda workers, seconds: engine)
    split = Split(["a", "b"], ["c", "d"], name="only", fid=1.0)
    planned = [PlannedRun(f"run{i}", f"m{i}", split, 0, None) for i in range(3)]
    audit_runs.run_until(planned, store, clock, 1, quiet=True)
    assert ended == ["run0"]
    assert audit_runs.not_run(planned, [], store) == ["No time was left for m0, m1, m2."]


def test_unequal_seeds_are_said(tmp_path):
    split = Split(["a", "b"], ["c", "d"], name="only", fid=1.0)
    planned = [PlannedRun(f"run{m}{s}", m, split, s, None) for m in ("margin", "rho") for s in range(2)]
    assert audit_runs.not_run(planned, planned, Store(tmp_path)) == []
    (told,) = audit_runs.not_run(planned, planned[:3], Store(tmp_path))
    assert told.startswith("Seeds that were finished: margin 2, rho 1.")


def test_pictures_and_views_follow_the_time():
    assert reduction(10, 600, 20) == {}
    assert reduction(10, 40_000, 100) == {"images_per_class": 40}
    assert reduction(1, 120_000, 22_000) == {"images_per_class": 8, "most_classes": 50}
    clock = Clock(10)
    assert affordable_views(clock, 15.0) == 8
    assert affordable_views(clock, 100.0) == 2
    assert affordable_views(clock, 1000.0) == 0


def standing(trained, untrained, seeds=3, noise=0.001, splits=3):
    rng = np.random.default_rng(0)
    rows = [
        Row("m", f"s{i}", 10.0 * i, seed, {METRIC: trained + rng.normal(0, noise)})
        for i in range(splits)
        for seed in range(seeds)
    ]
    return StudyTable(
        [*rows, *(Row("u", f"s{i}", 10.0 * i, 0, {METRIC: untrained}, kind="untrained") for i in range(splits))]
    )


@pytest.mark.parametrize(
    ("table", "use", "words"),
    [
        (
            standing(0.8, 0.7),
            "m",
            "Use m: training puts it ahead of the untrained backbone by 10.0 points of AGS (95 %",
        ),
        (standing(0.6, 0.7), "u", "Use the untrained backbone: training a head does not pay"),
        (standing(0.7, 0.7, noise=0.05), "u", "of AGS, which may be no more than noise (95 %"),
        (
            standing(0.8, 0.7, seeds=1),
            "m",
            "Use m: training puts it ahead of the untrained backbone by 10.0 points of AGS, as far as one",
        ),
        (standing(0.6, 0.7, seeds=1), "u", "m, is behind it by 10.0 points of AGS, as far as one seed can tell"),
        (standing(0.8, 0.7, splits=1), "m", "by 10.0 points, as far as one split can tell"),
    ],
)
def test_the_verdict_says_no_more_than_the_runs_can_tell(table, use, words):
    found, sentence = verdict(table, "m", "u")
    assert found == use
    assert words in sentence


def test_the_interval_is_that_of_the_lead_whoever_has_it():
    for trained, untrained in ((0.8, 0.7), (0.6, 0.7)):
        sentence = verdict(standing(trained, untrained), "m", "u")[1]
        low, high = (float(x) for x in sentence.partition("interval ")[2].partition(" over")[0].split(" to "))
        assert 9.5 < low < high < 10.5


def two_seeds(*leads):
    rows = [Row("m", f"s{i}", 10.0 * i, seed, {METRIC: 0.7 + x}) for i in range(3) for seed, x in enumerate(leads)]
    return StudyTable([*rows, *(Row("u", f"s{i}", 10.0 * i, 0, {METRIC: 0.7}, kind="untrained") for i in range(3))])


def test_two_seeds_that_agree_are_followed_with_a_warning_and_two_that_do_not_are_noise():
    assert verdict(two_seeds(0.09, 0.11), "m", "u") == (
        "m",
        "Use m: training puts it ahead of the untrained backbone by 10.0 points of AGS; both seeds agree, but two "
        "cannot rule out chance (95 % interval -2.7 to +22.7 over 2 seeds, and more would narrow it).",
    )
    use, sentence = verdict(two_seeds(-0.09, -0.11), "m", "u")
    assert use == "u"
    assert sentence.startswith("Use the untrained backbone: the best method, m, is behind it by 10.0 points of AGS;")
    assert "does not pay" not in sentence, "two seeds cannot say that"
    use, sentence = verdict(two_seeds(-0.01, 0.03), "m", "u")
    assert use == "u"
    assert "which may be no more than noise" in sentence


def test_methods_are_not_told_to_lead_in_two_orders():
    """Over all seeds one may lead, and the other over those that both have."""
    rows = [Row("a", f"s{i}", 10.0 * i, seed, {METRIC: x}) for i in range(3) for seed, x in enumerate((0.7, 0.9))]
    rows += [Row("b", f"s{i}", 10.0 * i, 0, {METRIC: 0.71}) for i in range(3)]
    told = "a and b cannot be told apart, a leads over all of its seeds and b over those that both have."
    assert runner_up(StudyTable(rows)) == f"Among the methods: {told}"


def test_without_a_trained_method_only_the_backbone_is_left():
    assert verdict(standing(0.8, 0.7), None, "u")[0] == "u"


def test_expectations_name_split_gallery_and_interval():
    like = Expectation("s1", 10.0, 20, 20, 0.9, 0.85, 0.94, 0.92)
    unlike = Expectation("s8", 90.0, 15, 15, 0.7, 0.6, 0.8, 0.72)
    told = " ".join(expectations("m", like, unlike, (15, 30)))
    assert "90.0 % of the time (95 % interval over classes 85.0 to 94.0)" in told
    assert "15 classes of 30 pictures, that is 92.0 % and 72.0 %" in told
    assert "are few" not in told
    few = Expectation("s8", 90.0, 15, 7, 0.7, 0.6, 0.8, 0.72)
    assert "7 test classes are few" in " ".join(expectations("m", like, few, (7, 30)))


@pytest.mark.parametrize(
    ("classes", "low", "high", "why"),
    [(8, 0.92, 0.92, "all test classes score alike"), (3, 0.9, 0.95, "3 classes are too few for one")],
)
def test_an_interval_that_means_nothing_is_left_out_and_said_so(classes, low, high, why):
    told = " ".join(expectations("m", Expectation("s1", 10.0, 4, classes, 0.92, low, high, 0.9), None, (4, 30)))
    assert f"92.0 % of the time (no interval: {why})" in told
    assert "are few: another choice of classes could move these numbers by many points." in told


def test_the_target_words_say_where_it_stands():
    fids = {"a": [10.0], "b": [40.0], "target": [22.0, 22.0, *[25.0] * 20, 28.0, 28.0]}
    *splits, target = [Spread(name, np.array(values)) for name, values in fids.items()]
    shared = tuple(SharedImage(i, i % 3, 1.0) for i in range(5))
    placed = Placement(50, splits, target, 200, shared, 480)
    forecast = {"target": {"inside": True, "sentence": "At FID 25.0 expect 80.0."}}
    told = " ".join(target_words(placed, forecast, (7, 30)))
    assert "FID 25.0 from yours (22.0 to 28.0 over draws of 50)" in told
    assert "span 10.0 to 40.0" in told
    assert "3 of the target's 200 pictures are in your folder too, or nearly (480 pictures of it were searched)" in told
    assert "That is for 7 classes of 30 pictures." in told
    assert "too few for a forecast" in " ".join(target_words(placed, None, (7, 30)))
