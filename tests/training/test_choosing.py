"""How far to adapt: chosen on the run's own validation classes, never on the test classes."""

import json
from dataclasses import replace

import numpy as np
import pytest

import oodml
from oodml import OodmlError
from oodml._split import hold_out_classes
from oodml.adaptation import few_shot
from oodml.adaptation.episodes import Episodes, FitOptions
from oodml.adaptation.target import read_target
from oodml.adaptation.validation import EPISODES, METRIC, PUBLISHED_LR, SLOW_LR, choose_steps, validation_target
from oodml.data import register_dataset
from oodml.training import train

OPTIONS = FitOptions(beta=1.2, batch_size=112, views=2, exact=False, seed=0)
QUICK = {"episodes": 3, "quiet": True, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = oodml.RunConfig(
        dataset="patterns", method="margin", train="head", embedding_dim=8, steps=6, batch_size=16, samples_per_class=4,
        metrics=("recall@1",), views=2, quiet=True, device="cpu", out=str(tmp_path_factory.mktemp("choose") / "run"),
    )  # fmt: skip
    return train(config).path


@pytest.fixture
def gains(monkeypatch):
    """Pretend that the fine-tuning of these (rate, steps) gains so much, others nothing; what was asked for is kept."""
    asked = []

    def pretend(values):
        def adapted(self, numbers, lr, stops, quiet):
            for stop in stops:
                asked.append((lr, stop))
                yield stop, {"gain": values.get((lr, stop), 0.0)}

        def scores(self, metrics, numbers, layers):
            value = 0.5 + (layers["gain"] if layers else 0.0)
            return [dict.fromkeys(metrics, value) for _ in numbers]

        monkeypatch.setattr(Episodes, "adapted", adapted)
        monkeypatch.setattr(Episodes, "scores", scores)
        return asked

    return pretend


def test_only_images_of_validation_classes_are_looked_at(run, monkeypatch):
    seen = []
    real = Episodes.read.__func__

    def read(cls, target, shots, count, options, quiet):
        found = real(cls, target, shots, count, options, quiet)
        seen.append(found)
        return found

    monkeypatch.setattr(Episodes, "read", classmethod(read))
    target = read_target(run, quiet=True)
    choose_steps(target, 2, 20, OPTIONS, quiet=True)
    (simulated,) = seen
    data = target.data
    expected = data.indices_of(hold_out_classes(target.split.train))
    assert len(simulated.sides) == EPISODES
    for support, query in simulated.sides:
        assert not set(support) & set(query)
        assert sorted([*support, *query]) == expected.tolist()
        assert np.bincount(data.labels[support]).max() == 2
    assert not set(expected) & set(target.test)


def test_the_gains_are_those_of_the_simulated_episodes(run):
    """Recomputed from the definition: adapt for that many steps, score, subtract, average."""
    target = read_target(run, quiet=True)
    found = choose_steps(target, 2, 30, OPTIONS, quiet=True)
    held_out = validation_target(target, 2, quiet=True).with_episodes(2, EPISODES)
    episodes = Episodes.read(held_out, 2, EPISODES, OPTIONS, quiet=True)
    embed = episodes.target.trained.embedder

    def scored(layers, number):
        rows = episodes.source.evaluation(episodes.sides[number][1]) / embed.feature_scale
        weight, bias = layers
        labels = held_out.data.labels[episodes.sides[number][1]]
        return oodml.evaluate(normalised(rows @ weight.T + bias), labels, [METRIC])[METRIC]

    def normalised(rows):
        return rows / rows.norm(dim=1, keepdim=True)

    start = list(next(iter(embed.heads.values())).parameters())
    for lr, steps, gain in found.tried[1:]:
        ((stop, layers),) = episodes.adapted(range(EPISODES), lr, [steps], quiet=True)
        after = [scored([value[n] for value in layers.values()], n) for n in range(EPISODES)]
        before = [scored([value.detach() for value in start], n) for n in range(EPISODES)]
        assert stop == steps and gain == pytest.approx(np.mean(np.array(after) - np.array(before)), abs=1e-5)
    assert (found.lr, found.steps) == max(found.tried, key=lambda each: each[2])[:2]


def test_the_best_stop_wins_and_a_falling_rate_is_given_up(run, gains):
    asked = gains({(SLOW_LR, 10): 0.01, (SLOW_LR, 20): 0.03, (SLOW_LR, 50): 0.02, (SLOW_LR, 500): 0.9})
    found = choose_steps(read_target(run, quiet=True), 2, 1000, OPTIONS, quiet=True)
    assert (found.lr, found.steps) == (SLOW_LR, 20)
    assert asked == [(SLOW_LR, 10), (SLOW_LR, 20), (SLOW_LR, 50), (SLOW_LR, 100)]
    assert "Rate 1e-05 and 20 steps were chosen" in found.note and json.dumps(found.to_json())


def test_the_published_rate_is_tried_where_the_slow_one_still_gains_at_its_end(run, gains):
    slow = {(SLOW_LR, stop): stop * 1e-4 for stop in (10, 20, 50, 100, 200, 300)}
    asked = gains({**slow, (PUBLISHED_LR, 200): 0.2, (PUBLISHED_LR, 300): 0.1})
    found = choose_steps(read_target(run, quiet=True), 2, 300, OPTIONS, quiet=True)
    assert (found.lr, found.steps) == (PUBLISHED_LR, 200)
    assert asked[6:] == [(PUBLISHED_LR, 100), (PUBLISHED_LR, 200), (PUBLISHED_LR, 300)]


def test_a_run_is_not_adapted_where_nothing_gains(run, gains):
    gains({(SLOW_LR, stop): -0.1 for stop in (10, 20)})
    found = few_shot(run, shots=2, steps=50, **QUICK)
    assert found["few"] == found["zero"] and found.about["steps"] == 0
    assert any("Nothing was adapted" in note for note in found.notes)


def test_few_shot_adapts_as_chosen(run):
    found = few_shot(run, shots=2, steps=50, **QUICK)
    tried = found.about["chosen"]["tried"]
    lr, steps, _ = max(tried, key=lambda each: each[2])
    assert (found.about["lr"], found.about["steps"]) == (lr, steps) and steps > 0
    fixed = few_shot(run, shots=2, lr=lr, steps=steps, **QUICK)
    assert fixed["few"] == found["few"] and fixed.about["chosen"] is None


@pytest.mark.parametrize("exact", [False, True])
def test_a_backbone_that_was_trained_is_asked_for_its_validation_images_too(settings, exact):
    found = few_shot(train(settings(views=2)).path, shots=2, steps=12, exact=exact, **QUICK)
    assert [tuple(each[:2]) for each in found.about["chosen"]["tried"]][:3] == [(0, 0), (SLOW_LR, 10), (SLOW_LR, 12)]
    assert found.about["chosen"]["classes"] == 2 and found.about["exact"] is exact


def test_without_validation_classes_the_published_rate_is_taken(settings):
    result = train(settings(selection="last", views=2))
    found = few_shot(result.path, shots=2, steps=5, **QUICK)
    assert (found.about["lr"], found.about["steps"], found.about["chosen"]) == (PUBLISHED_LR, 5, None)
    assert any("papers' rate 0.0001" in note and "selection='last'" in note for note in found.notes)


def test_validation_classes_too_small_for_the_shots_are_left_out(run):
    target = read_target(run, quiet=True)
    assert "fewer than two of its 2 validation classes have more than 8 images" in validation_target(target, 8, True)
    assert len(validation_target(target, 7, True).split.test) == 2


def test_one_shot_of_few_classes_says_what_can_be_done(run):
    found = few_shot(run, shots=1, steps=2, **QUICK)
    assert any("2 validation classes are too few to adapt to 1 images of each" in note for note in found.notes)
    names = oodml.load_dataset("patterns").classes
    split = oodml.Split(names[:8], names[8:11], name="three")
    with pytest.raises(OodmlError, match=r"are 3, and adapting needs 4: take more shots, or .* more test classes"):
        few_shot(run, split, shots=1, **QUICK)
    assert few_shot(run, split, shots=2, steps=2, lr=1e-4, **QUICK).about["steps"] == 2


def test_adapting_elsewhere_chooses_on_its_own_dataset(run):
    def make():
        made = oodml.load_dataset("patterns", seed=1)
        return replace(made, name="elsewhere", fingerprint="elsewhere" + made.fingerprint)

    register_dataset("elsewhere", make, replace=True, summary="Other patterns for the tests.")
    target = read_target(run, None, "elsewhere", quiet=True)
    assert not target.is_own_dataset
    held_out = validation_target(target, 2, quiet=True)
    assert held_out.data.name == "patterns" and set(held_out.split.test) == set(
        hold_out_classes(oodml.load_dataset("patterns").default_split.train)
    )


@pytest.mark.parametrize("lr", ["fast", 0, -1e-4])
def test_a_rate_that_is_not_one_is_refused(run, lr):
    with pytest.raises(OodmlError, match="lr is a learning rate above 0, or 'auto'"):
        few_shot(run, shots=2, lr=lr, **QUICK)
