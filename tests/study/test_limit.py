"""A limit of time: it surely stops what runs, and never what cleans up."""

import contextlib
import multiprocessing
import signal
import time
from pathlib import Path

import pytest
import torch

from oodml.study.engines import execute as study_execute
from oodml.study.engines import local
from oodml.study.engines.local import LocalEngine, stopping_after
from oodml.study.store import Store


def test_time_that_is_up_is_said_again_to_whoever_did_not_listen(monkeypatch):
    """An exception that is raised while a thread is being started may end as another one, which a run takes for its
    own failure: an audit of one minute once went on for three."""
    monkeypatch.setattr(local, "REPEAT_SECONDS", 0.1)
    began = time.monotonic()
    with stopping_after(0.05):
        with contextlib.suppress(BaseException):
            time.sleep(20)
        try:
            time.sleep(20)
        except BaseException:
            with contextlib.suppress(RuntimeError):
                raise RuntimeError("cannot join thread before it is started") from None
        time.sleep(20)
    assert time.monotonic() - began < 10


def test_what_cleans_up_is_left_to_end(monkeypatch):
    monkeypatch.setattr(local, "REPEAT_SECONDS", 0.02)
    cleaned = []

    @contextlib.contextmanager
    def tidy(name):
        try:
            yield
        finally:
            with contextlib.suppress(KeyError):
                time.sleep(0.1)
                {}["other errors are handled on the way"]
            time.sleep(0.1)
            cleaned.append(name)

    with stopping_after(0.05), tidy("outer"), tidy("inner"):
        time.sleep(20)
    assert cleaned == ["inner", "outer"]


@pytest.fixture
def endless(cheap, monkeypatch):
    """Runs that never end, and take their time to leave; makes a plan of them."""

    def train(config, dataset):
        folder = Path(config.out)
        folder.mkdir(parents=True)

        def leave(number, frame):
            time.sleep(0.5)
            (folder / "saved").touch()
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, leave)
        (folder / "started").touch()
        time.sleep(600)

    monkeypatch.setattr(study_execute, "train", train)
    return cheap


def test_every_worker_is_awaited_when_the_time_is_up(endless, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_SPAWN", local.multiprocessing.get_context("fork"))  # they start at once
    assert list(LocalEngine(3, seconds=2.0)(endless(5), Store(tmp_path))) == []
    assert len(list(tmp_path.glob("runs/*/started"))) == 3
    assert len(list(tmp_path.glob("runs/*/saved"))) == 3
    assert not list(tmp_path.glob("runs/*/failed.json"))


def test_a_run_of_this_process_is_stopped_too(endless, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert list(LocalEngine(1, seconds=0.2)(endless(2), Store(tmp_path))) == []
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(list(tmp_path.glob("runs/*/started"))) == 1
    assert not list(tmp_path.glob("runs/*/failed.json"))


def test_a_worker_whose_study_has_left_when_its_run_ends_leaves_quietly(monkeypatch):
    monkeypatch.setattr(local, "_stop_with_parent", lambda: None)
    ours, theirs = multiprocessing.Pipe()

    def execute(run, store, device):
        ours.close()
        return "done"

    monkeypatch.setattr(local, "execute", execute)
    ours.send(("run", "store", None))
    local._serve(theirs, torch.get_num_threads(), [])
