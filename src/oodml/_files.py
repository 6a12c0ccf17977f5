"""Where caches live and how files are written: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError


def cache_root() -> Path:
    """`$OODML_CACHE`, else the user's cache folder."""
    if chosen := os.environ.get("OODML_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "oodml"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oodml"


@contextlib.contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an operating-system error into one sentence that says what to do."""
    try:
        yield
    except OSError as error:
        left = "" if action == "read" else " Nothing half-written was left behind."
        raise OodmlError(f"Could not {action} {path}. {_advice(action, path, error)}{left}") from error


def _advice(action: str, path: Path, error: OSError) -> str:
    elsewhere = "point OODML_CACHE to" if path.is_relative_to(cache_root()) else "choose"
    if error.errno in (errno.ENOTDIR, errno.EEXIST) and (file := file_in_the_way(path.parent)):
        return f"{file} is a file; give a folder."
    if error.errno == errno.ENOSPC:
        return f"The disk is full: free some space, or {elsewhere} a larger one."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        if action == "read":
            return "You may not read it: change its permissions, or give a copy of your own."
        return f"The folder cannot be written: change its permissions, or {elsewhere} a folder of yours."
    return f"The system said: {error.strerror or error}."


def file_in_the_way(folder: Path) -> Path | None:
    """The file that stands where `folder`, or a folder it is in, ought to be; None where there is none."""
    return next((each for each in (folder, *folder.parents) if each.is_file()), None)


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder that could not be made or written to; for commands that compute long before they write."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        problem = "cannot be written to" if there.is_dir() else "is a file"
        raise OodmlError(f"{option}: {there} {problem}. Choose another place.")


def check_holds_only(what: str, folder: Path, marks: Iterable[str]) -> None:
    """Refuse a file, and a folder with something in it but none of the `marks` of a run, study or audit (`what`): ours
    would be scattered among somebody's images or papers."""
    if folder.is_file():
        raise OodmlError(f"{folder} is a file; give a folder.")
    if not folder.is_dir() or any((folder / mark).exists() for mark in marks):
        return
    there = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))  # those are being written
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise OodmlError(
            f"{folder} holds something that is no {what} ({', '.join(there[:3])}{more}), and files would be scattered "
            "among it. Choose a new or an empty folder."
        )


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes the name of `path` only if the body succeeds."""
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # temporary files are private; what takes the name is an ordinary file
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it takes the name of `path` only if the body succeeds."""
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            if path.exists():
                shutil.rmtree(path)
            temporary.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    """The process's file mode mask; the system has no way to read it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(as_json(value))


def as_json(value: Any) -> bytes:
    """JSON that people and diff can read. The bytes of a file name that are no UTF-8 stand in it as JSON's escapes."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, so that of two processes that start together one does the work and the other reads it."""
    with explained("lock", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also when the process is killed
        yield
