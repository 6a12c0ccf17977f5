"""The search: ranges from the records, validation classes as judge, test classes out of sight."""

import pytest

import oodml
from oodml.shift import Split
from oodml.study import search as search_room
from oodml.study.search import search, search_name, search_ranges, with_options, without_test_classes

optuna = pytest.importorskip("optuna", reason="the search is an extra: pip install 'oodml[search]'")


class Trained:
    def __init__(self, score):
        self.scores = {"recall@1": score}


@pytest.fixture
def trials(noise, monkeypatch):
    """Training replaced by a function of the margin; gives the settings of every trial."""
    seen = []

    def train(config, dataset):
        seen.append(config)
        return Trained(1 - (config.method["base"]["margin"] - 0.3) ** 2)

    monkeypatch.setattr(search_room, "train", train)
    return seen


CONFIG = {"dataset": "noise", "backbone": "tiny", "embedding_dim": 8, "steps": 2, "batch_size": 8}


def test_ranges_come_from_the_records_of_method_and_loss():
    assert search_ranges("margin")["loss.beta"] == (0.6, 1.2)
    ranges = search_ranges({"name": "rho", "base": "triplet"})
    assert ranges["base.margin"] == (0.05, 0.5)


def test_options_find_their_places():
    spec = with_options(
        {"name": "s2sd", "base": {"name": "rho", "base": "margin"}}, {"gamma": 2, "base.base.beta": 0.9}
    )
    assert spec == {"name": "s2sd", "base": {"name": "rho", "base": {"name": "margin", "beta": 0.9}}, "gamma": 2}


def test_the_best_trial_is_found_and_the_test_classes_are_not_seen(trials, noise, tmp_path):
    config = {**CONFIG, "method": {"name": "rho", "base": "triplet"}}
    found = search(config, tmp_path / "search", trials=12, options={"base.margin": (0.05, 0.5)}, quiet=True)
    assert found.method["base"]["margin"] == pytest.approx(0.3, abs=0.06)
    assert found.score == max(score for _, score in found.trials)
    train, test = set(noise.default_split.train), set(noise.default_split.test)
    for config in trials:
        used = {*config.split.train, *config.split.val, *config.split.test}
        assert used <= train
        assert not used & test
        assert not set(config.split.train) & set(config.split.test)


def test_a_search_goes_on_where_it_was(trials, tmp_path):
    config = {**CONFIG, "method": {"name": "rho", "base": "triplet"}}
    ranges = {"base.margin": (0.05, 0.5)}
    search(config, tmp_path / "search", trials=3, options=ranges, quiet=True)
    found = search(config, tmp_path / "search", trials=5, options=ranges, quiet=True)
    assert len(trials) == len(found.trials) == 5
    assert len({options["base.margin"] for options, _ in found.trials}) == 5, "a trial was repeated"
    assert all(config.metrics == ("recall@1",) for config in trials)


@pytest.mark.parametrize(
    ("changes", "options", "told"),
    [
        ({"method": {"name": "rho", "base": "contrastive"}}, {"base.margin": (0.05, 0.5)}, "a search of rho-triplet"),
        ({}, {"base.margin": (0.1, 0.5)}, r"a search of rho-triplet over \{'base.margin': \[0.05, 0.5\]\}"),
        ({"steps": 3}, {"base.margin": (0.05, 0.5)}, "a search of rho-triplet with other settings of the run"),
    ],
)
def test_a_folder_of_another_search_is_refused(trials, tmp_path, changes, options, told):
    config = {**CONFIG, "method": {"name": "rho", "base": "triplet"}}
    search(config, tmp_path / "search", trials=1, options={"base.margin": (0.05, 0.5)}, quiet=True)
    with pytest.raises(oodml.OodmlError, match=f"search holds {told}. Give --out another folder"):
        search({**config, **changes}, tmp_path / "search", trials=1, options=options, quiet=True)
    assert len(trials) == 1


def test_a_method_names_its_folder():
    assert search_name("margin") == search_name({"name": "plain", "loss": {"name": "margin", "beta": 1}}) == "margin"
    assert search_name({"name": "s2sd", "base": {"name": "rho", "base": "triplet"}}) == "s2sd-rho-triplet"


def test_an_unknown_metric_is_found_before_a_trial(trials, tmp_path):
    with pytest.raises(oodml.OodmlError, match="Did you mean 'recall@1'"):
        search({**CONFIG, "method": "margin"}, tmp_path / "search", metric="recal@1", quiet=True)
    assert not trials


def test_any_metric_may_judge(noise, tmp_path):
    """Also one that training does not compute unless it is asked to."""
    config = {**CONFIG, "method": {"name": "rho", "base": "triplet"}, "eval_every": 2}
    found = search(config, tmp_path / "s", 1, "ami", {"base.margin": (0.05, 0.5)}, quiet=True)
    assert len(found.trials) == 1


def test_given_validation_classes_are_the_judge():
    split = Split(["a", "b", "c", "d"], ["x"], val=["c", "d"])
    seen = without_test_classes(split)
    assert (seen.train, seen.test, seen.val) == (["a", "b"], ["c", "d"], [])


def test_an_unknown_option_and_nothing_to_search_are_refused(noise, tmp_path, monkeypatch):
    with pytest.raises(oodml.OodmlError, match="Did you mean 'margin'"):
        search({**CONFIG, "method": "margin"}, tmp_path, options={"loss.mragin": (0.0, 1.0)}, quiet=True)
    with pytest.raises(oodml.OodmlError, match="has no option 'base'"):
        search({**CONFIG, "method": "margin"}, tmp_path, options={"base.margin": (0.0, 1.0)}, quiet=True)
    monkeypatch.setattr(search_room, "search_ranges", lambda method: {})
    with pytest.raises(oodml.OodmlError, match="no options with a range"):
        search({**CONFIG, "method": "margin"}, tmp_path, quiet=True)
