"""The sentences of an audit, the rule behind its advice, and how a budget and its blocks are made."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from oodml.auditing.budget import BUDGETS, METHODS, blocks_of, complete_blocks
from oodml.auditing.images import reduced
from oodml.evaluation import evaluate
from oodml.reporting.words import advice_sentences, expectation_sentences, target_sentences, worth_sentences
from oodml.shift import Placement, SharedImage, Split, Spread
from oodml.study.advice import Expectation, advise, expectation
from oodml.study.grid import PlannedRun
from oodml.study.leaderboard import METRIC
from oodml.study.store import Store
from oodml.study.table import Row, StudyTable


def test_budgets_grow_and_contain_each_other():
    sizes = [(b.methods, b.levels, b.draws, b.images) for b in BUDGETS.values()]
    assert list(BUDGETS) == ["small", "medium", "large"]
    assert sizes[0][:3] == (3, 3, 3)
    assert all(np.all(np.less(a, b)) for a, b in pairwise(sizes))
    assert "S2SD" not in BUDGETS["small"].settings_of_methods
    assert BUDGETS["large"].settings_of_methods == METHODS
    built = 7  # levels of shift that the images allow
    levels = [np.linspace(0, built - 1, b.levels).round().astype(int) for b in BUDGETS.values()]
    assert set(levels[0]) <= set(levels[1]) <= set(levels[2])


SPLITS = [Split(["a", "b"], ["c", "d"], name=name, fid=1.0) for name in ("s1", "s2")]


def planned_and_done(tmp_path, undone):
    """Two methods × two splits × three draws, of which those in `undone` have no result."""
    planned = [
        PlannedRun(f"{m}-{split.name}-{s}", m, split, s, None) for m in ("a", "b") for split in SPLITS for s in range(3)
    ]
    store = Store(tmp_path)
    for run in planned:
        if run.id not in undone:
            store.write_json(f"runs/{run.id}/result.json", {"seconds": 1.0})
    return planned, store


def test_a_block_is_all_methods_and_levels_of_one_draw(tmp_path):
    planned, store = planned_and_done(tmp_path, [])
    blocks = blocks_of(planned)
    assert [len(block) for block in blocks] == [4, 4, 4]
    assert [{run.seed for run in block} for block in blocks] == [{0}, {1}, {2}]
    kept, notes = complete_blocks(planned, store)
    assert sorted(run.id for run in kept) == sorted(run.id for run in planned)
    assert notes == []


def test_a_block_that_lacks_a_run_is_left_out_whole(tmp_path):
    planned, store = planned_and_done(tmp_path, ["b-s2-1"])
    kept, notes = complete_blocks(planned, store)
    assert {run.seed for run in kept} == {0, 2}
    assert notes == [
        "2 of 3 blocks are complete, and the answer uses only these. Run the same command again to add the others."
    ]
    store.record_failure("b-s2-1", "Traceback\nKeyError: 'x'")
    assert complete_blocks(planned, store)[1][1:] == ["b failed in one block: KeyError: 'x'"]


def test_a_method_that_fails_in_every_block_is_left_out_and_the_others_stay(tmp_path):
    planned, store = planned_and_done(tmp_path, ["b-s1-0", "b-s1-1", "b-s1-2", "b-s2-2", "a-s1-2"])
    store.record_failure("b-s1-0", "Traceback\nValueError: no")
    kept, notes = complete_blocks(planned, store)
    assert {(run.method, run.seed) for run in kept} == {("a", 0), ("a", 1)}
    assert notes[0] == "b failed and is left out: ValueError: no"
    assert notes[1].startswith("2 of 3 blocks are complete")


def test_a_large_folder_is_reduced_to_the_images_of_the_budget():
    assert reduced(4000, 600, 20) == {}
    assert reduced(4000, 40_000, 100) == {"images_per_class": 40}
    assert reduced(400, 120_000, 22_000) == {"images_per_class": 8, "most_classes": 50}


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
        (standing(0.6, 0.7), "u", "Use the untrained backbone: training a head does not improve it"),
        (standing(0.7, 0.7, noise=0.05), "u", "of AGS, which chance may explain (95 %"),
        (
            standing(0.8, 0.7, seeds=1),
            "m",
            "Use m: training puts it ahead of the untrained backbone by 10.0 points of AGS, measured with one seed",
        ),
        (standing(0.6, 0.7, seeds=1), "u", "m, is behind it by 10.0 points of AGS, measured with one seed only"),
        (standing(0.8, 0.7, splits=1), "m", "by 10.0 points, measured on one level of shift only"),
    ],
)
def test_the_advice_states_no_more_than_the_runs_can_show(table, use, words):
    found = advise(table, "u")
    assert found.use == use
    assert words in advice_sentences(found)[0]


def test_the_interval_is_that_of_the_lead_whoever_has_it():
    for trained, untrained in ((0.8, 0.7), (0.6, 0.7)):
        sentence = advice_sentences(advise(standing(trained, untrained), "u"))[0]
        low, high = (float(x) for x in sentence.partition("interval ")[2].partition(" over")[0].split(" to "))
        assert 9.5 < low < high < 10.5


def two_seeds(*leads):
    rows = [Row("m", f"s{i}", 10.0 * i, seed, {METRIC: 0.7 + x}) for i in range(3) for seed, x in enumerate(leads)]
    return StudyTable([*rows, *(Row("u", f"s{i}", 10.0 * i, 0, {METRIC: 0.7}, kind="untrained") for i in range(3))])


def advised(*leads):
    found = advise(two_seeds(*leads), "u")
    return found.use, advice_sentences(found)[0]


def test_two_seeds_that_agree_are_followed_with_a_warning_and_two_that_do_not_are_noise():
    assert advised(0.09, 0.11) == (
        "m",
        "Use m: training puts it ahead of the untrained backbone by 10.0 points of AGS; both seeds agree, but two "
        "seeds cannot exclude chance (95 % interval -2.7 to +22.7 over 2 seeds, and more would narrow it).",
    )
    use, sentence = advised(-0.09, -0.11)
    assert use == "u"
    assert sentence.startswith("Use the untrained backbone: the best method, m, is behind it by 10.0 points of AGS;")
    assert "does not improve" not in sentence, "two seeds cannot show that"
    use, sentence = advised(-0.01, 0.03)
    assert use == "u"
    assert "which chance may explain" in sentence


def test_methods_do_not_lead_in_two_orders():
    """Over all seeds one may lead, and the other over those that both have."""
    rows = [Row("a", f"s{i}", 10.0 * i, seed, {METRIC: x}) for i in range(3) for seed, x in enumerate((0.7, 0.9))]
    rows += [Row("b", f"s{i}", 10.0 * i, 0, {METRIC: 0.71}) for i in range(3)]
    rows += [Row("u", f"s{i}", 10.0 * i, 0, {METRIC: 0.5}, kind="untrained") for i in range(3)]
    assert advice_sentences(advise(StudyTable(rows), "u"))[1] == (
        "Among the methods: a and b cannot be distinguished, a leads over all of its seeds and b over those that both "
        "have."
    )


def test_without_a_trained_method_only_the_backbone_is_left():
    rows = [row for row in standing(0.8, 0.7).rows if row.method == "u"]
    found = advise(StudyTable(rows), "u")
    assert (found.use, found.best, found.lead) == ("u", None, None)
    assert advice_sentences(found) == ["Use the untrained backbone: no method was trained on every split."]


def test_expectations_name_split_gallery_and_interval():
    like = Expectation("s1", 10.0, 20, 20, 0.9, 0.85, 0.94, 0.92)
    unlike = Expectation("s8", 90.0, 15, 15, 0.7, 0.6, 0.8, 0.72)
    words = " ".join(expectation_sentences("m", [like, unlike], (15, 30)))
    assert "90.0 % of the time (95 % interval over classes 85.0 to 94.0)" in words
    assert "15 classes of 30 images, that is 92.0 % and 72.0 %" in words
    assert "are few" not in words
    few = Expectation("s8", 90.0, 15, 7, 0.7, 0.6, 0.8, 0.72)
    assert "7 test classes are few" in " ".join(expectation_sentences("m", [like, few], (7, 30)))


@pytest.mark.parametrize(("classes", "why"), [(8, "all test classes score alike"), (3, "3 classes are too few")])
def test_an_interval_that_means_nothing_is_left_out_with_the_reason(classes, why):
    found = Expectation("s1", 10.0, 4, classes, 0.92, None, None, 0.9)
    words = " ".join(expectation_sentences("m", [found], (4, 30)))
    assert f"92.0 % of the time (no interval: {why})" in words
    assert "are few: other classes could change these numbers by many points." in words


@pytest.mark.parametrize(("classes", "noise"), [(8, 0.1), (3, 12.0)])
def test_no_interval_over_few_classes_or_over_classes_that_score_alike(classes, noise):
    names = [f"c{i}" for i in range(classes)]
    split = Split(["x", "y"], names, name="s", fid=1.0)
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(classes, 8))
    labels = np.repeat(np.arange(classes), 4)
    features = (centres[labels] + noise * rng.normal(size=(len(labels), 8))).astype(np.float32)
    dataset = SimpleNamespace(labels=labels, indices_of=lambda names: np.arange(len(labels)))
    scores = evaluate(features, labels, ["recall@1"], normalise=True)
    assert (scores["recall@1"] == 1.0) == (noise < 1)
    table = StudyTable([Row("u", "s", 1.0, 0, {"recall@1": scores["recall@1"], METRIC: 0.5}, kind="untrained")])
    found = expectation(table, "u", split, dataset, features)
    assert (found.low, found.high) == (None, None)
    assert (found.recall, found.matched) == (scores["recall@1"], 0.5)


def test_the_sentences_on_a_target_name_its_place_and_its_shared_images():
    fids = {"a": [10.0], "b": [40.0], "target": [22.0, 22.0, *[25.0] * 20, 28.0, 28.0]}
    *splits, target = [Spread(name, np.array(values)) for name, values in fids.items()]
    shared = tuple(SharedImage(i, i % 3, 1.0) for i in range(5))
    placed = Placement(50, splits, target, 200, shared, 480)
    expected = {"fid": 25.0, "value": 0.8, "low": 0.7, "high": 0.9, "inside": True}
    forecast = {"target": expected, "gallery": [7, 30], "method": "m", "leave_one_out_error": 0.01}
    words = " ".join(target_sentences(placed, forecast))
    assert "FID 25.0 from yours (22.0 to 28.0 over draws of 50)" in words
    assert "span 10.0 to 40.0" in words
    assert "3 of the target's 200 images are also in your folder, or nearly (480 images of it were searched)" in words
    assert "At FID 25.0 expect 80.0 % with m (95 % interval 70.0 to 90.0" in words
    assert "That is for 7 classes of 30 images." in words
    assert "too few for a forecast" in " ".join(target_sentences(placed, {"target": None, "gallery": [7, 30]}))


def test_without_a_target_the_accuracy_of_a_forecast_is_stated():
    (sentence,) = worth_sentences({"leave_one_out_error": 0.0123, "method": "m"})
    assert sentence.startswith("With m, a split left out is predicted to 1.2 points:")
    assert worth_sentences({"leave_one_out_error": None}) == []
