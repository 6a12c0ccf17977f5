"""The store: whatever is killed, whoever else works on it, wherever it lies, the results are those of one quiet run."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import oodml
from oodml.shift import Split, save_splits
from oodml.study import StudyConfig, load_study
from oodml.study.engines import local, make_engine
from oodml.study.engines.execute import execute
from oodml.study.engines.local import LocalEngine
from oodml.study.run import run_missing
from oodml.study.status import counts, status
from oodml.study.store import RemoteStore, Store, open_store


def results(root, count):
    store = Store(root)
    return {f"run{i:02}": store.result(f"run{i:02}") for i in range(count)}


def lines(root, name):
    """How often each run was started or finished."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in root.glob(f"runs/*/{name}")}


def coordinator(planned, root):
    """A process that does what is missing, without starting an interpreter anew."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_missing(planned, Store(root), LocalEngine(workers=1), quiet=True)
            code = 0
        finally:
            os._exit(code)
    return child


def quiet_results(planned, tmp_path):
    root = tmp_path / "quiet"
    run_missing(planned, Store(root), LocalEngine(workers=1), quiet=True)
    return results(root, len(planned))


def kill_and_resume(planned, root, kills, seed):
    """Kill coordinators at random moments, then let one finish; gives how many of them really were interrupted."""
    rng, interrupted = random.Random(seed), 0
    for _ in range(kills):
        child = coordinator(planned, root)
        time.sleep(rng.uniform(0.001, 0.08))
        os.kill(child, signal.SIGKILL)
        _, how = os.waitpid(child, 0)
        interrupted += os.WIFSIGNALED(how)
    child = coordinator(planned, root)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return interrupted


def test_a_handful_of_kills_changes_nothing(cheap, tmp_path):
    planned = cheap(20)
    interrupted = kill_and_resume(planned, tmp_path / "study", kills=6, seed=0)
    assert interrupted >= 3
    assert results(tmp_path / "study", 20) == quiet_results(planned, tmp_path)
    assert max(lines(tmp_path / "study", "finished").values()) == 1, "a finished run was run again"


@pytest.mark.long
def test_a_hundred_kills_change_nothing(cheap, tmp_path):
    planned, interrupted = cheap(30), 0
    for round_ in range(10):
        root = tmp_path / f"study{round_}"
        interrupted += kill_and_resume(planned, root, kills=12, seed=round_)
        assert results(root, 30) == results(tmp_path / "study0", 30)
        assert not list(root.glob("runs/*/.*.part*/")), "something half-written was taken for whole"
    assert interrupted >= 50
    assert results(tmp_path / "study0", 30) == quiet_results(planned, tmp_path)


def test_two_coordinators_share_the_work(cheap, tmp_path):
    planned = cheap(25)
    children = [coordinator(planned, tmp_path / "study") for _ in range(3)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert results(tmp_path / "study", 25) == quiet_results(planned, tmp_path)
    assert set(lines(tmp_path / "study", "started").values()) == {1}, "a run was done twice"
    workers = {path.read_text() for path in (tmp_path / "study").glob("runs/*/started")}
    assert len(workers) > 1, "one coordinator did everything"


def test_a_run_under_way_is_left_alone_and_shown(cheap, tmp_path):
    planned, store = cheap(2), Store(tmp_path)
    with store.claim("run00") as ours:
        assert ours
        assert execute(planned[0], Store(tmp_path)) == "elsewhere"
        assert counts(status(planned, store)) == {"done": 0, "running": 1, "failed": 0, "waiting": 1}
    assert execute(planned[0], Store(tmp_path)) == "done"
    assert counts(status(planned, store)) == {"done": 1, "running": 0, "failed": 0, "waiting": 1}


@pytest.fixture
def forked_workers(monkeypatch):
    """Workers that start at once and have the cheap runs; the real ones start a fresh interpreter each."""
    monkeypatch.setattr(local, "_SPAWN", local.multiprocessing.get_context("fork"))


def test_a_worker_that_dies_takes_no_other_run_with_it(cheap, forked_workers, tmp_path):
    planned, store = cheap(8, fails={1: "dies", 4: "raises", 5: "dies"}), Store(tmp_path)
    outcomes = {run.id: outcome for run, outcome in LocalEngine(workers=2)(planned, store)}
    assert {run_id for run_id, outcome in outcomes.items() if outcome == "failed"} == {"run01", "run04", "run05"}
    assert sum(outcome == "done" for outcome in outcomes.values()) == 5
    assert "SIGKILL" in store.failure("run01")
    assert "Out of memory?" in store.failure("run05")
    assert "no memory left" in store.failure("run04")
    assert [each.reason for each in status(planned, store) if each.run.id == "run04"] == ["MemoryError: no memory left"]


def test_a_worker_that_dies_while_idle_is_replaced(cheap, forked_workers, tmp_path):
    planned, store = cheap(5), Store(tmp_path)
    pool = local._Pool(2, 1, None)
    idle = local.Worker(1)
    pool.idle.append(idle)
    idle.process.kill()
    idle.process.join()
    assert {outcome for _, outcome in pool.run(planned, store)} == {"done"}
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 5


def test_a_failed_run_is_tried_again(cheap, forked_workers, tmp_path):
    store = Store(tmp_path)
    list(LocalEngine(workers=2)(cheap(3, fails={1: "dies"}), store))
    run_missing(cheap(3), store, LocalEngine(workers=2), quiet=True)
    assert store.failure("run01") is None
    assert results(tmp_path, 3)["run01"]["number"] == 1


def test_a_stopped_study_leaves_no_worker_behind(cheap, forked_workers, tmp_path):
    runs = LocalEngine(workers=2)(cheap(30), Store(tmp_path))
    next(runs)
    runs.close()  # as Ctrl-C does
    done = len(list(tmp_path.glob("runs/*/result.json")))
    time.sleep(0.2)
    assert len(list(tmp_path.glob("runs/*/result.json"))) == done < 30


def test_a_damaged_result_is_named(tmp_path):
    store = Store(tmp_path)
    store.write("runs/a/result.json", b'{"half":')
    with pytest.raises(oodml.OodmlError, match=r"runs/a/result\.json is damaged"):
        store.result("a")


# -- stores behind a URL ---------------------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A store that is reached through fsspec alone."""
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    return f"file://{tmp_path}/bucket"


def test_a_study_at_a_url_needs_no_common_disk(replay, study, trained, tmp_path, monkeypatch):
    address = "memory://studies/one"
    oodml.run_study(study(), address, quiet=True)
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "another machine"))
    elsewhere = load_study(address)
    for metric in ("recall@1", "recall@1:matched"):
        np.testing.assert_array_equal(elsewhere.scores(metric), load_study(trained).scores(metric))
    assert elsewhere.rows[0].path.is_relative_to(tmp_path / "another machine")
    assert open_store(address).names("claims") == []


def test_a_claim_at_a_url_excludes_others_until_it_is_stale(cheap, url):
    first, second = RemoteStore(url), RemoteStore(url)
    with first.claim("run00") as ours:
        assert ours
        with second.claim("run00") as theirs:
            assert not theirs
        assert second.is_claimed("run00")
    assert not second.is_claimed("run00")

    first._sign("claims/run00", "a machine that is gone")
    assert execute(cheap(1)[0], second) == "elsewhere"
    assert execute(cheap(1)[0], RemoteStore(url, heartbeat=0.0)) == "done"


def test_a_claim_is_renewed_while_its_owner_lives(url):
    store = RemoteStore(url, heartbeat=0.02)
    with store.claim("a"):
        signed = store.read_json("claims/a")["at"]
        deadline = time.monotonic() + 5
        while store.read_json("claims/a")["at"] == signed:
            assert time.monotonic() < deadline, "no sign of life"
            time.sleep(0.01)


@pytest.mark.parametrize("error", [OSError, RuntimeError, TimeoutError])
def test_a_sign_of_life_that_is_lost_is_followed_by_another(url, monkeypatch, error):
    """Drivers of stores raise what they like when the network is away for a moment."""
    store, tried = RemoteStore(url, heartbeat=0.02), []

    def write(name, content):
        tried.append(name)
        if len(tried) == 2:
            raise error("the network is away")
        return RemoteStore.write(store, name, content)

    monkeypatch.setattr(store, "write", write)
    with store.claim("a"):
        deadline = time.monotonic() + 5
        while len(tried) < 4:
            assert time.monotonic() < deadline, "no further sign of life"
            time.sleep(0.01)


def test_coordinators_at_a_url_end_with_the_same_results(cheap, url, tmp_path):
    planned = cheap(10)
    run_missing(planned, pickle.loads(pickle.dumps(RemoteStore(url))), LocalEngine(workers=1), quiet=True)
    kept = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "bucket").glob("runs/*/result.json")}
    assert kept == quiet_results(planned, tmp_path)


def test_a_store_that_cannot_be_opened_says_so():
    with pytest.raises(oodml.OodmlError, match="nosuchprotocol"):
        open_store("nosuchprotocol://bucket")


def test_engines_are_named_and_their_options_checked():
    with pytest.raises(oodml.OodmlError, match="Did you mean 'local'"):
        make_engine("locall")
    with pytest.raises(oodml.OodmlError, match="no option 'address'"):
        make_engine("local", address="auto")
    with pytest.raises(oodml.OodmlError, match="at least 1"):
        make_engine("local", workers=0)


# -- the real thing: spawned workers, real training ------------------------------------------------------------------


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.long
def test_a_killed_coordinator_takes_its_workers_along_and_the_next_goes_on(tmp_path):
    """`oodml study run` on glyphs with two workers, killed with SIGKILL three times on the way."""
    names = sorted(oodml.load_dataset("glyphs").classes)[::8]
    splits = [Split(names[:30], names[30:50], name=f"s{i}", fid=float(i), dataset="glyphs") for i in range(1)]
    save_splits(tmp_path / "splits.json", splits)
    run = {"backbone": "tiny", "embedding_dim": 16, "steps": 60, "eval_every": 20, "batch_size": 32, "device": "cpu"}
    settings = StudyConfig(
        dataset="glyphs", splits=str(tmp_path / "splits.json"), methods=["margin", "triplet"], seeds=[0, 1, 2], run=run
    )
    (tmp_path / "study.yaml").write_text(settings.to_yaml(), encoding="utf-8")

    def start(folder):
        words = ["study", "run", str(tmp_path / "study.yaml"), "--out", str(folder), "--workers", "2", "--quiet"]
        return subprocess.Popen([sys.executable, "-m", "oodml", *words], stdout=subprocess.DEVNULL)

    def children(pid):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    folder, rng = tmp_path / "killed", random.Random(0)
    for _ in range(3):
        process = start(folder)
        deadline = time.monotonic() + 200
        while not list(folder.glob(".locks/*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(rng.uniform(0, 6))
        workers = children(process.pid) if process.poll() is None else []
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while any(map(alive, workers)):
            assert time.monotonic() < deadline, "a worker outlived its coordinator"
            time.sleep(0.1)
    assert start(folder).wait() == 0
    assert start(tmp_path / "quiet").wait() == 0
    for metric in ("recall@1", "nmi"):
        np.testing.assert_array_equal(load_study(folder).scores(metric), load_study(tmp_path / "quiet").scores(metric))
