"""Files are written whole or not at all, and the errors say what to do."""

import errno
import json
import multiprocessing
import os

import pytest

from oodml import _files
from oodml._errors import OodmlError


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path):
    target = tmp_path / "value.json"
    _files.write_json(target, {"a": 1})
    with pytest.raises(RuntimeError), _files.atomic_file(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(target.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def test_a_written_file_can_be_read_by_others(tmp_path):
    _files.write_json(tmp_path / "value.json", 1)
    mask = os.umask(0o022)
    os.umask(mask)
    assert (tmp_path / "value.json").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_full_disk_is_one_sentence(tmp_path):
    with pytest.raises(OodmlError, match="disk is full"), _files.atomic_file(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(_files.tempfile, "mkstemp", refuse)
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    with pytest.raises(OodmlError, match="or point OODML_CACHE to a folder of yours"):
        _files.write_json(tmp_path / "cache" / "x.json", 1)
    with pytest.raises(OodmlError, match="or choose a folder of yours"):
        _files.write_json(tmp_path / "x.json", 1)


def test_a_file_that_cannot_be_read_is_not_told_about_as_one_to_write(tmp_path):
    with pytest.raises(OodmlError, match="You may not read it") as told, _files.explained("read", tmp_path / "x"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert "written" not in str(told.value)


def test_a_file_where_a_folder_is_wanted_is_called_a_file(tmp_path):
    file = tmp_path / "afile.txt"
    file.touch()
    told = r"afile\.txt is a file; give a folder\."
    with pytest.raises(OodmlError, match=f"{told}$"), _files.explained("read", file / "x"):
        (file / "x").read_bytes()
    for path in (file / "x", file / "y" / "x"):
        with pytest.raises(OodmlError, match=told):
            _files.write_json(path, 1)


def test_only_a_folder_of_its_own_kind_or_an_empty_one_will_do(tmp_path):
    _files.check_holds_only("run", tmp_path / "new", ["mark"])
    (tmp_path / ".being-written").touch()
    _files.check_holds_only("run", tmp_path, ["mark"])
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(OodmlError, match=r"is not empty and holds no run \(a, b, c and 1 more\)\."):
        _files.check_holds_only("run", tmp_path, ["mark"])
    with pytest.raises(OodmlError, match="is a file; give a folder"):
        _files.check_holds_only("run", tmp_path / "a", ["mark"])
    (tmp_path / "mark").touch()
    _files.check_holds_only("run", tmp_path, ["mark"])


def test_an_atomic_folder_replaces_the_old_one_whole(tmp_path):
    target = tmp_path / "folder"
    for text in ("old", "new"):
        with _files.atomic_folder(target) as temporary:
            (temporary / text).write_text(text)
    assert [p.name for p in target.iterdir()] == ["new"]


def _append_twice(folder):
    with _files.exclusive(folder / "lock"):
        log = folder / "log"
        before = log.read_text() if log.exists() else ""
        log.write_text(before + "in ")
        log.write_text(log.read_text() + "out ")


def test_the_lock_keeps_processes_apart(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_twice, args=(tmp_path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "log").read_text() == "in out " * 4


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "here"))
    assert _files.cache_root() == tmp_path / "here"
    monkeypatch.delenv("OODML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _files.cache_root() == tmp_path / "oodml"
