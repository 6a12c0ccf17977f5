"""Stores of version 1: their runs are found under today's names, or are stale with the reason."""

import json
import tarfile
from pathlib import Path

import pytest
import torch

from oodml import OodmlError, RunConfig
from oodml.config.version1 import Stale, from_version_1
from oodml.study import StudyConfig
from oodml.study.grid import load_settings, plan
from oodml.study.migration import identities_of, stale_runs
from oodml.study.splits import stored_splits
from oodml.study.store import Store

CARS = Path(__file__).parents[3] / "shared" / "results" / "cars196-40-epochs.tgz"


@pytest.fixture
def weights(tmp_path):
    torch.save({"conv1.weight": torch.ones(3)}, tmp_path / "resnet50_v1.pth")
    return str(tmp_path / "resnet50_v1.pth")


@pytest.fixture
def store(tmp_path):
    """`store({"id": config})`: a store with finished runs of version 1."""

    def make(runs: dict[str, dict]) -> Store:
        found = Store(tmp_path / "study")
        for name, config in runs.items():
            found.write_json(f"runs/{name}/result.json", {"config": config, "seconds": 1.0})
        return found

    return make


def old(**settings) -> dict:
    """The settings that version 1 recorded: resolved, without the numbers that methods filled in later."""
    return {**RunConfig(**settings).resolved().as_dict(), "cache_side": None}


@pytest.mark.real
@pytest.mark.skipif(not CARS.exists(), reason="needs the results of a study of version 1")
def test_every_run_of_a_study_of_version_1_is_found(tmp_path, weights):
    with tarfile.open(CARS) as archive:
        archive.extractall(tmp_path / "cars", filter="data")
    store = Store(tmp_path / "cars")
    settings = load_settings(store)
    settings["run"]["weights"] = weights
    settings["splits"] = "default"  # the file of the splits is elsewhere; those of the study are in its folder
    planned = plan(StudyConfig(**settings), stored_splits(store))
    assert sum(store.result(run.id) is not None for run in planned) == 0
    with pytest.raises(OodmlError, match=r"started from /data/resnet50_v1\.pth, which is not there.*study migrate"):
        identities_of(store)
    store.adopt(identities_of(store, weights, small_images=True))
    assert len(planned) == len(store.identities.renamed) == 32 and not stale_runs(store)
    for run in planned:
        result = Store(store.root).result(run.id)
        assert (result["split"]["name"], result["seed"]) == (run.split.name, run.seed)
        assert result["config"]["method"]["name"] == run.config.resolved().method["name"]


def test_images_that_the_cache_reduced_make_runs_of_a_protocol_new(store):
    settings = {"dataset": "cub200", "method": "margin", "protocol": "oodml", "pretrained": False, "cache_side": 512}
    held = store({"a": old(**settings)})
    assert identities_of(held).folder(RunConfig(**settings).hash()) == RunConfig(**settings).hash()
    assert identities_of(held, small_images=True).folder(RunConfig(**settings).hash()) == "a"


@pytest.mark.parametrize(
    ("dataset", "method", "today"),
    [
        ("cub200", {"name": "rho", "base": "margin"}, {"name": "rho", "base": "margin", "p_switch": 0.4}),
        (
            "cub200",
            {"name": "rho", "base": {"name": "margin", "beta": 1.2}},
            {"name": "rho", "base": {"name": "margin", "beta": 1.2}, "p_switch": 0.35},
        ),
        ("sop", {"name": "s2sd", "base": "margin"}, {"name": "s2sd", "base": "margin", "gamma": 5.0}),
        ("glyphs", {"name": "rho", "base": "margin", "p_switch": None}, {"name": "rho", "base": "margin"}),
        (
            "cars196",
            {"name": "diva"},
            {"name": "diva", "alpha": 0.15, "decorrelation": 25.0, "queue": 30, "weights": [0.5, 1.5]},
        ),
    ],
)
def test_numbers_that_followed_from_the_dataset_are_written_out(dataset, method, today, monkeypatch):
    if dataset == "sop":
        monkeypatch.setattr("oodml.data.dataset_setting", lambda dataset: dataset)  # it is not registered
    recorded = {"dataset": dataset, "method": method, "embedding_dim": 256, "backbone": "tiny", "steps": 10}
    wanted = RunConfig(**{**recorded, "method": today}).hash()
    assert wanted in [each.hash() for each in from_version_1(recorded)]


def test_spellings_of_s2sd_that_compute_the_same_are_found():
    base = {"name": "multisimilarity", "qualifying_only": True}
    method = {"name": "s2sd", "base": base, "nested_lr": "base", "feature_start": 1000}
    recorded = {"dataset": "cub200", "method": method, "protocol": "s2sd"}
    recorded = old(**recorded) | {"method": method}
    today = RunConfig(dataset="cub200", protocol="s2sd", method={"name": "s2sd"}).hash()
    assert today in [each.hash() for each in from_version_1(recorded, small_images=True)]


def test_explicit_numbers_stay():
    method = {"name": "rho", "base": "margin", "p_switch": 0.1}
    (found,) = from_version_1({"dataset": "cub200", "method": method, "backbone": "tiny"})
    assert found.method == method


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ({"name": "sharing"}, "both tasks"),
        ({"name": "s2sd", "topology": "nested"}, "equation 7"),
        ({"name": "uniform_prior", "base": {"name": "s2sd", "topology": "chained"}}, "width"),
    ],
)
def test_what_computes_something_else_is_stale(method, why, store):
    with pytest.raises(Stale, match=why):
        from_version_1({"dataset": "glyphs", "method": method})
    held = store({"a": {"dataset": "glyphs", "method": method}, "b": old(method="margin")})
    held.adopt(identities_of(held))
    assert list(held.identities.stale) == ["a"] and why in held.identities.stale["a"]
    assert held.identities.folder(RunConfig(method="margin").hash()) == "b"
    assert json.loads((held.root / "identities.json").read_text())["stale"].keys() == {"a"}
    assert list(stale_runs(Store(held.root)).values()) == [1]


def test_a_preview_writes_nothing(store):
    held = store({"b": old(method="margin")})
    held.adopt(identities_of(held), write=False)
    assert held.result(RunConfig(method="margin").hash()) is not None
    assert not (held.root / "identities.json").exists()
