"""Official split files: plain data is read, anything else is refused before it can act."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oodml import OodmlError
from oodml.shift import load_official, load_official_episodes

TRAIN, TEST = ["a", "b", "c", "d"], ["e", "f"]


def entry(**changes: Any) -> dict[str, Any]:
    return {"train": TRAIN, "test": TEST, "split_train": TRAIN[1:], "split_val": TRAIN[:1], "fid": 8.6, **changes}


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_with_numpy_numbers_are_read(tmp_path: Path, protocol: int) -> None:
    episodes = {2: [{"e": ["1.jpg", "2.jpg"], "f": ["3.jpg", "4.jpg"]}]}
    content = {
        np.int64(2): entry(fid=np.float64(14.3)),
        np.int64(10): entry(fid=np.array(99.0), test=np.array(TEST)),
        np.int64(1): entry(test_episodes=episodes, n=np.arange(3)),
    }
    (tmp_path / "cars196_splits.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    splits = load_official(tmp_path / "cars196_splits.pkl", "cars196")
    assert [s.name for s in splits] == ["official-1", "official-2", "official-10"]
    assert [s.fid for s in splits] == [8.6, 14.3, 99.0]
    assert splits[0].val == ["a"]
    assert splits[0].episodes == episodes
    assert splits[2].test == TEST
    assert all(type(name) is str for s in splits for name in s.test)


def test_pickles_of_the_numpy_of_that_time_are_read(tmp_path: Path) -> None:
    old = pickle.dumps({1: entry(fid=np.float64(8.6))}, protocol=2).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core.multiarray" in old
    (tmp_path / "old.pkl").write_bytes(old)
    assert load_official(tmp_path / "old.pkl", "cub200")[0].fid == 8.6


class Attack:
    def __reduce__(self) -> Any:
        return os.system, ("touch it-ran",)


class Subtle:
    def __reduce__(self) -> Any:
        return eval, ("open('it-ran', 'w')",)


@pytest.mark.parametrize("harm", [Attack(), Subtle(), Path("x"), {1}.__class__, range])
def test_anything_but_plain_data_is_refused_without_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps({1: entry(extra=harm)}))
    with pytest.raises(OodmlError, match="not plain data"):
        load_official(tmp_path / "bad.pkl", "cub200")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", b"{broken", b"\x1f\x8bzz", pickle.dumps([1, 2])])
def test_damaged_files_are_explained(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.pkl").write_bytes(content)
    with pytest.raises(OodmlError, match=r"bad\.pkl"):
        load_official(tmp_path / "bad.pkl", "cub200")


def test_whole_class_episodes_of_sop_are_left_aside(tmp_path: Path) -> None:
    content = {1: entry(test_episodes={2: [["e"], ["f"]]})}
    (tmp_path / "sop.pkl").write_bytes(pickle.dumps(content))
    assert load_official(tmp_path / "sop.pkl", "sop")[0].episodes == {}


def test_json_holds_several_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "official.json"
    path.write_text(json.dumps({"_meta": {}, "cars196": {"1": entry()}, "online_products": {"2": entry()}}))
    assert load_official(path, "cars196")[0].dataset == "cars196"
    assert load_official(path, "sop")[0].dataset == "sop"
    with pytest.raises(OodmlError, match="Unknown data set in"):
        load_official(path, "inshop")


def test_a_class_on_both_sides_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "official.json"
    path.write_text(json.dumps({"cars196": {"1": entry(test=["a"])}}))
    with pytest.raises(OodmlError, match="'a' on both sides"):
        load_official(path, "cars196")


def test_episode_files_may_be_compressed(tmp_path: Path) -> None:
    content = {"_meta": {}, "cars196": {"1": {"2": [{"e": ["1.jpg", "2.jpg"]}]}}}
    (tmp_path / "few.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    assert load_official_episodes(tmp_path / "few.json.gz", "cars196") == {"1": {2: [{"e": ["1.jpg", "2.jpg"]}]}}
