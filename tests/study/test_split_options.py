"""The options of the splits that a study builds: what they do, what is written of them, and what they rebuild."""

import json

import numpy as np
import pytest
import torch

import oodml
from oodml import OodmlError
from oodml.models import make_backbone
from oodml.models.backbones import weights_digest
from oodml.study.settings import BuildSplits
from oodml.study.splits import choose_splits, split_features
from oodml.study.store import Store


@pytest.fixture
def data(noise):
    return noise


@pytest.fixture
def build(study, data, tmp_path):
    """Chooses the splits of a study that builds them, in one folder."""

    def chosen(**options):
        settings = study(splits={"n_splits": 4, "backbone": "tiny", **options})
        return choose_splits(settings, data, Store(tmp_path / "study"), quiet=True)

    return chosen


def save_weights(path, seed):
    torch.save(make_backbone("tiny", seed=seed).body.state_dict(), path)
    return str(path)


@pytest.mark.filterwarnings("ignore:Only")
@pytest.mark.parametrize("options", [{}, {"keep": 0.9}, {"swaps_per_step": 3}, {"weights": True}])
def test_the_options_reach_features_and_splits(build, data, tmp_path, options):
    if "weights" in options:
        options = {"weights": save_weights(tmp_path / "other.pth", seed=5)}
    found = build(**options)
    shared = {key: value for key, value in options.items() if key != "weights"}
    features = oodml.extract_features(data, "tiny", weights=options.get("weights"), quiet=True)
    named = {"class_names": data.classes, "start": data.default_split, "n_splits": 4, "dataset": "noise"}
    expected = oodml.build_splits(features, data.labels, **named, **shared)
    assert [(s.train, s.test, s.fid) for s in found] == [(s.train, s.test, s.fid) for s in expected]
    plain = oodml.build_splits(oodml.extract_features(data, "tiny", quiet=True), data.labels, **named)
    assert ([(s.train, s.test, s.fid) for s in found] == [(s.train, s.test, s.fid) for s in plain]) == (not options)
    again, _ = split_features(found[0].provenance["recipe"], data)
    np.testing.assert_array_equal(again, features)


@pytest.mark.filterwarnings("ignore:Only")
def test_splits_are_built_again_for_other_options_and_only_then(build, tmp_path, monkeypatch):
    first, second = (save_weights(tmp_path / f"{seed}.pth", seed) for seed in (5, 6))
    build(weights=first, keep=0.8, swaps_per_step=2)
    recipe = json.loads((tmp_path / "study/splits.json").read_text())["splits"][0]["provenance"]["recipe"]
    assert (recipe["keep"], recipe["swaps_per_step"], recipe["weights"]) == (0.8, 2, first)
    assert recipe["weights_sha256"] == weights_digest(first)

    builds = []
    real = oodml.study.splits.build_splits
    monkeypatch.setattr("oodml.study.splits.build_splits", lambda *a, **o: builds.append(o) or real(*a, **o))
    build(weights=first, keep=0.8, swaps_per_step=2)
    (tmp_path / "moved.pth").write_bytes((tmp_path / "5.pth").read_bytes())
    build(weights=str(tmp_path / "moved.pth"), keep=0.8, swaps_per_step=2)
    assert not builds, "the same file elsewhere"
    for number, changed in enumerate(
        ({"weights": second, "keep": 0.8}, {"keep": 0.8}, {"keep": 0.7}, {"keep": 0.7, "swaps_per_step": 1}, {}), 1
    ):
        build(**changed)
        assert len(builds) == number, changed
    (tmp_path / "moved.pth").write_bytes((tmp_path / "6.pth").read_bytes())
    build(weights=first)
    build(weights=str(tmp_path / "moved.pth"))
    assert len(builds) == 7, "another file"


@pytest.mark.filterwarnings("ignore:Only")
def test_splits_that_are_older_than_an_option_had_its_default(build, tmp_path, monkeypatch):
    build()
    file = tmp_path / "study/splits.json"
    held = json.loads(file.read_text())
    for split in held["splits"]:
        for option in ("weights", "keep", "swaps_per_step"):
            del split["provenance"]["recipe"][option]
    file.write_text(json.dumps(held))
    monkeypatch.setattr("oodml.study.splits.build_splits", lambda *a, **o: pytest.fail("built again"))
    build()


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": 1.1}, {"swaps_per_step": 0}])
def test_impossible_options_are_refused_with_the_settings(options):
    with pytest.raises(OodmlError, match=next(iter(options))):
        BuildSplits(**options)


def test_a_missing_file_of_weights_is_named(build, tmp_path):
    with pytest.raises(OodmlError, match=r"No weights file at .*absent\.pth"):
        build(weights=str(tmp_path / "absent.pth"))
