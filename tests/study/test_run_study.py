"""A study from settings to table: the grid, what is re-used, what fails, what is refused before anything runs."""

import json

import numpy as np
import pytest

import oodml
from oodml.data import ArraySource, build_dataset, register_dataset
from oodml.shift import Split, save_splits
from oodml.study import execute as study_execute
from oodml.study.config import StudyConfig, plan

CLASSES = [f"class{i}" for i in range(12)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def dataset():
    """Twelve classes of coloured noise, learnt in a few steps."""
    rng = np.random.default_rng(0)
    base = rng.integers(40, 215, (12, 1, 1, 3))
    pixels = np.concatenate([np.clip(b + rng.integers(-40, 40, (6, 32, 32, 3)), 0, 255) for b in base])
    source = ArraySource(pixels.astype(np.uint8), [f"{i}.png" for i in range(72)])
    made = build_dataset("noise", source, [name for name in CLASSES for _ in range(6)])
    register_dataset("noise", lambda: made, replace=True, summary="Coloured noise for a test.")
    return made


@pytest.fixture
def splits(tmp_path):
    path = tmp_path / "splits.json"
    easy = Split(CLASSES[:6], CLASSES[6:], name="easy", fid=1.0, dataset="noise")
    hard = Split(CLASSES[6:10], CLASSES[:4], name="hard", fid=9.0, dataset="noise")
    save_splits(path, [easy, hard])
    return str(path)


def study(splits, **changes):
    run = {"backbone": "tiny", "embedding_dim": 8, "steps": 2, "eval_every": 2, "batch_size": 8, "selection": "last"}
    values = {"dataset": "noise", "splits": splits, "methods": ["margin", "contrastive"], "run": run} | changes
    return StudyConfig(**values)


@pytest.fixture
def one_process(monkeypatch):
    """Runs in this process, so that they see the data set registered here."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_a_study_runs_once_and_is_re_used(dataset, splits, tmp_path, one_process, monkeypatch):
    table = oodml.run_study(study(splits), tmp_path / "study", quiet=True)
    assert table.scores("recall@1").shape == (2, 2, 1)
    assert set(table.ags("recall@1")) == {"margin", "contrastive"}
    assert not np.isnan(table.scores("recall@1:matched")).any()

    trained = []
    real = study_execute.train
    monkeypatch.setattr(study_execute, "train", lambda config, *more: trained.append(config.method) or real(config))
    wider = study(splits, methods=["margin", "contrastive", "triplet"])
    assert len(oodml.run_study(wider, tmp_path / "study", quiet=True).rows) == 6
    assert trained == ["triplet", "triplet"]


def test_a_failing_run_is_recorded_and_stops_no_other(dataset, splits, tmp_path, one_process, monkeypatch):
    real = study_execute.train

    def sometimes(config, dataset):
        if config.method == "margin":
            raise MemoryError("no memory left")
        return real(config)

    monkeypatch.setattr(study_execute, "train", sometimes)
    table = oodml.run_study(study(splits), tmp_path / "study", quiet=True)
    assert table.methods == ["contrastive"]
    failures = list((tmp_path / "study" / "runs").glob("*/failed.json"))
    assert len(failures) == 2
    assert "no memory left" in json.loads(failures[0].read_text())["traceback"]

    monkeypatch.setattr(study_execute, "train", real)
    assert oodml.run_study(study(splits), tmp_path / "study", quiet=True).methods == ["margin", "contrastive"]
    assert not list((tmp_path / "study" / "runs").glob("*/failed.json"))


def test_when_all_runs_fail_the_reason_is_given(dataset, splits, tmp_path, one_process, monkeypatch):
    def fail(config, dataset):
        raise MemoryError("no memory left")

    monkeypatch.setattr(study_execute, "train", fail)
    with pytest.raises(oodml.OodmlError, match="no memory left"):
        oodml.run_study(study(splits), tmp_path / "study", quiet=True)


def test_ids_depend_on_what_is_computed_and_on_nothing_else(dataset, splits):
    loaded = list(oodml.shift.load_splits(splits))
    first, second = plan(study(splits), loaded), plan(study(splits, name="other"), loaded)
    assert [run.id for run in first] == [run.id for run in second]
    assert len({run.id for run in first}) == 4
    longer = plan(study(splits, run=study(splits).run | {"steps": 3}), loaded)
    assert not {run.id for run in first} & {run.id for run in longer}


def test_further_axes_name_the_rows(dataset, splits):
    loaded = list(oodml.shift.load_splits(splits))
    labels = {run.method for run in plan(study(splits, embedding_dims=[8, 16]), loaded)}
    assert labels == {"margin · d8", "margin · d16", "contrastive · d8", "contrastive · d16"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metods": []}, "Did you mean 'methods'"),
        ({"run": {"stepz": 3}}, "Did you mean 'steps'"),
        ({"run": {"seed": 3}}, "the study sets it"),
        ({"seeds": []}, "seeds"),
    ],
)
def test_a_typo_is_found_before_anything_runs(dataset, splits, changes, message):
    with pytest.raises(oodml.OodmlError, match=message):
        study(splits, **changes)


def test_an_unknown_method_is_found_before_anything_runs(dataset, splits):
    with pytest.raises(oodml.OodmlError, match="Did you mean 'margin'"):
        plan(study(splits, methods=["margn"]), list(oodml.shift.load_splits(splits)))
