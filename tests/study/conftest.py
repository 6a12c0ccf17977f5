"""A data set and splits on which a run takes a fraction of a second, and runs that take none."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from oodml._files import write_json
from oodml.data import ArraySource, Transforms, build_dataset, register_dataset
from oodml.shift import Split, save_splits
from oodml.study.engines import execute as study_execute
from oodml.study.grid import PlannedRun
from oodml.study.run import run_study
from oodml.study.settings import StudyConfig

CLASSES = [f"class{i}" for i in range(12)]


def make_noise():
    """Twelve classes of coloured noise, trained in a few steps."""
    rng = np.random.default_rng(0)
    base = rng.integers(40, 215, (12, 1, 1, 3))
    pixels = np.concatenate([np.clip(b + rng.integers(-40, 40, (6, 32, 32, 3)), 0, 255) for b in base])
    source = ArraySource(pixels.astype(np.uint8), [f"{i}.png" for i in range(72)])
    small = Transforms(size=32, short_side=32)  # the default enlarges every picture to a photograph's size
    made = build_dataset("noise", source, [name for name in CLASSES for _ in range(6)], transforms=small)
    register_dataset("noise", lambda: made, replace=True, summary="Coloured noise for a test.")
    study_execute._loaded.cache_clear()
    return made


@pytest.fixture(scope="session")
def splits(tmp_path_factory):
    path = tmp_path_factory.mktemp("splits") / "splits.json"
    easy = Split(CLASSES[:6], CLASSES[6:], name="easy", fid=1.0, dataset="noise")
    hard = Split(CLASSES[6:10], CLASSES[:4], name="hard", fid=9.0, dataset="noise")
    save_splits(path, [easy, hard])
    return str(path)


@pytest.fixture(scope="session")
def study(splits):
    """Makes studies of two methods on two splits; `changes` replace settings."""

    def make(**changes):
        run = {"backbone": "tiny", "embedding_dim": 8, "steps": 2, "eval_every": 2, "batch_size": 8}
        run |= {"selection": "last"}
        values = {"dataset": "noise", "splits": splits, "methods": ["margin", "contrastive"], "run": run} | changes
        return StudyConfig(**values)

    return make


@pytest.fixture(scope="session")
def trained(study, tmp_path_factory):
    """The folder of such a study, really trained, once; copy it before changing anything."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OODML_CACHE", str(folder / "cache"))
        make_noise()
        run_study(study(), folder / "study", quiet=True, workers=1)
    return folder / "study"


@pytest.fixture
def noise(tmp_path, monkeypatch):
    """The data set of these studies; runs happen in this process, which knows it."""
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    return make_noise()


@pytest.fixture
def replay(noise, trained, monkeypatch):
    """Training that takes what `trained` has; gives the list of methods it was asked for."""
    asked = []

    def train(config, dataset):
        asked.append(config.method)
        shutil.copytree(trained / "runs" / config.hash(), config.out, dirs_exist_ok=True)

    monkeypatch.setattr(study_execute, "train", train)
    return asked


class CheapConfig:
    """Stands for a run's settings; `train` below knows what to do with it."""

    dataset, device = "cheap", "cpu"

    def __init__(self, number: int, fails: str = "") -> None:
        self.number, self.fails, self.out = number, fails, ""

    def model_copy(self, update):
        copy = CheapConfig(self.number, self.fails)
        copy.out = update["out"]
        return copy


def cheap_train(config, dataset=None, steps=5, pause=0.002):
    """As a real run: a checkpoint after every step, resumed from; the result last, whole, and always the same."""
    folder = Path(config.out)
    if (folder / "result.json").exists():
        return
    if config.fails == "dies":
        os.kill(os.getpid(), 9)
    if config.fails == "raises":
        raise MemoryError("no memory left")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "started").open("a") as log:
        log.write(f"{os.getpid()}\n")
    checkpoint = folder / "checkpoint.json"
    step = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    while step < steps:
        time.sleep(pause)
        step += 1
        write_json(checkpoint, step)
    write_json(folder / "result.json", {"number": config.number, "seconds": 1.0, "steps": step})
    with (folder / "finished").open("a") as log:
        log.write(f"{os.getpid()}\n")


@pytest.fixture
def cheap(monkeypatch):
    """Runs that cost nothing: `cheap(20)` plans twenty of them; `fails={3: "dies"}` makes one die or raise."""
    monkeypatch.setattr(study_execute, "train", cheap_train)
    monkeypatch.setattr(study_execute, "shared_dataset", lambda spec: None)
    split = Split(["a", "b"], ["c", "d"], name="only", fid=1.0)

    def plan(count, fails=None):
        return [
            PlannedRun(f"run{i:02}", f"method{i}", split, 0, CheapConfig(i, (fails or {}).get(i, "")))
            for i in range(count)
        ]

    return plan
