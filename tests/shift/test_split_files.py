"""Split files: what is written is what is read, and nothing wrong gets in."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import oodml
from oodml import OodmlError, Split
from oodml.shift import Splits, load_splits, save_splits, split_address, with_validation


def a_split(**changes: Any) -> Split:
    values: dict[str, Any] = {
        "train": ["ant", "bee", "cat", "dog"],
        "test": ["eel", "fox"],
        "val": ["bee"],
        "name": "shift-1",
        "dataset": "zoo",
        "fid": 12.5,
        "provenance": {"stage": "start"},
        "episodes": {2: [{"eel": ["eel/1.jpg", "eel/2.jpg"], "fox": ["fox/1.jpg", "fox/3.jpg"]}]},
    }
    return Split(**{**values, **changes})


def test_round_trip(tmp_path: Path) -> None:
    split = a_split()
    split.save(tmp_path / "split.json")
    assert Split.load(tmp_path / "split.json") == split
    assert oodml.Split.load(str(tmp_path / "split.json")).episodes[2][0]["fox"] == ["fox/1.jpg", "fox/3.jpg"]


def test_the_file_has_the_documented_keys(tmp_path: Path) -> None:
    a_split().save(tmp_path / "one.json")
    keys = ["format", "dataset", "name", "train", "val", "test", "fid", "fid_mode", "provenance", "episodes"]
    assert list(json.loads((tmp_path / "one.json").read_text())) == keys
    a_split(test_dataset="farm").save(tmp_path / "two.json")
    assert json.loads((tmp_path / "two.json").read_text())["test_dataset"] == "farm"
    assert a_split(test_dataset="zoo").test_dataset is None


def test_names_may_repeat_across_data_sets() -> None:
    assert a_split(train=["eel"], val=[], test_dataset="farm").train == ["eel"]


def test_series_round_trip_and_choice_by_name(tmp_path: Path) -> None:
    path = tmp_path / "splits.json"
    series = Splits([a_split(), a_split(name="shift-2", fid=20.0)], [{"stage": "start", "step": 0, "fid": 12.5}])
    save_splits(path, series)
    read = load_splits(path)
    assert read == series
    assert read.progression == series.progression
    assert read[1:].progression == series.progression
    assert Split.load(f"{path}#shift-2") == series[1]
    with pytest.raises(OodmlError, match=r"holds 2 splits: name one as .*#shift-1"):
        Split.load(path)
    with pytest.raises(OodmlError, match="Did you mean 'shift-2'"):
        Split.load(f"{path}#shift2")


def test_a_path_with_a_hash_in_it_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c#dir").mkdir()
    series = Splits([a_split(), a_split(name="shift-2")])
    for path in (tmp_path / "c#dir" / "s.json", tmp_path / "c#dir" / "s#1.json"):
        save_splits(path, series)
        assert split_address(path) == (path, "") and load_splits(path) == series
        assert split_address(f"{path}#shift-2") == (path, "shift-2")
        assert load_splits(f"{path}#shift-2") == [series[1]] and Split.load(f"{path}#shift-2") == series[1]
    with pytest.raises(OodmlError, match=r"There is no split file .*c#dir/t\.json\."):
        load_splits(tmp_path / "c#dir" / "t.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Split.load("~/c#dir/s.json#shift-1") == series[0]


def test_a_single_split_reads_as_a_series(tmp_path: Path) -> None:
    a_split().save(tmp_path / "split.json")
    assert load_splits(tmp_path / "split.json") == [a_split()]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"test": ["eel", "bee"]}, "'bee' on both sides"),
        ({"val": ["fox"]}, "not training classes: 'fox'"),
        ({"train": [], "val": []}, "needs classes on both sides"),
        ({"train": ["ant", "ant"], "val": []}, "'ant' more than once"),
        ({"train": "ant", "val": []}, "list of class names"),
        ({"train": [1, 2], "val": []}, "holds 1"),
        ({"fid_mode": "pixels"}, "Unknown fid_mode 'pixels'"),
        ({"episodes": {2: [{"eel": ["a", "b"]}]}}, "exactly the test classes"),
        ({"episodes": {2: [{"eel": ["a", "b"], "fox": ["c"]}]}}, "'fox' needs exactly 2 different"),
        ({"episodes": {2: [{"eel": ["a", "b"], "fox": ["c", "c"]}]}}, "'fox' needs exactly 2 different"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(OodmlError, match=told):
        a_split(**changes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "not a split file"),
        ('{"format": "oodml-split/9", "train": ["a"], "test": ["b"]}', "oodml-split/9"),
        ('{"format": "oodml-split/1", "train": ["a"]}', "lacks 'test'"),
        ('{"format": "oodml-split/1", "train": ["a"], "test": ["b"], "trian": []}', "Did you mean 'train'"),
        ('{"format": "oodml-split/1", "train": ["a"], "test": ["b"], "fid": "high"}', "'fid' must be"),
        ('{"format": "oodml-split/1", "train": ["a"], "test": ["b"], "episodes": {"x": []}}', "number of shots"),
        ('{"format": "oodml-splits/1", "splits": []}', "without splits"),
        (b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_damaged_files_are_explained(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = tmp_path / "split.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(OodmlError, match=told):
        Split.load(path)


def test_a_file_that_cannot_be_read_is_not_called_bad_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    a_split().save(tmp_path / "split.json")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(OodmlError, match=r"^Could not read .*split\.json\. The system said: Input/output error"):
        Split.load(tmp_path / "split.json")


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(OodmlError, match="no split file"):
        Split.load(tmp_path / "nothing.json")


def test_two_splits_of_a_series_need_two_names(tmp_path: Path) -> None:
    with pytest.raises(OodmlError, match="different names"):
        save_splits(tmp_path / "splits.json", [a_split(), a_split()])
    assert not (tmp_path / "splits.json").exists()


def test_validation_is_a_seeded_quarter_of_the_training_classes() -> None:
    split = a_split(train=[f"c{i}" for i in range(98)], val=[])
    once, again, other = with_validation(split), with_validation(split), with_validation(split, seed=1)
    assert len(once.val) == 25  # as in the official CARS splits
    assert once.val == again.val != other.val
    assert sorted(once.val + once.fit) == sorted(split.train)


@pytest.mark.parametrize(("classes", "held_out"), [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (8, 2), (9, 3)])
def test_validation_has_two_classes_or_none(classes: int, held_out: int) -> None:
    split = with_validation(a_split(train=[f"c{i}" for i in range(classes)], val=[]))
    assert len(split.val) == held_out and len(split.fit) == classes - held_out
