"""Files that are written completely or not at all; locks; the cache folder and what is in it."""

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
from typing import Any, NamedTuple

from oodml._errors import OodmlError

CACHE_KINDS = ("images", "features", "glyphs")  # folders of what can be computed again; others are never removed


def cache_root() -> Path:
    """`$OODML_CACHE`, else `oodml` in the user's cache folder."""
    if chosen := os.environ.get("OODML_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "oodml"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oodml"


@contextlib.contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into an `OodmlError` that says what to do."""
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
    """The file in the place of `folder` or of a folder that it is in; None if there is none."""
    return next((each for each in (folder, *folder.parents) if each.is_file()), None)


def check_writable(folder: Path, option: str) -> None:
    """Raise if a folder cannot be created or written to; for commands that compute long before they write."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        problem = "cannot be written to" if there.is_dir() else "is a file"
        raise OodmlError(f"{option}: {there} {problem}. Choose another place.")


def check_holds_only(what: str, folder: Path, marks: Iterable[str]) -> None:
    """Raise for a file, and for a folder that is not empty and has none of the `marks` of a run, study or audit
    (`what`): results must not be mixed with other files."""
    if folder.is_file():
        raise OodmlError(f"{folder} is a file; give a folder.")
    if not folder.is_dir() or any((folder / mark).exists() for mark in marks):
        return
    there = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))  # those are being written
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise OodmlError(
            f"{folder} is not empty and holds no {what} ({', '.join(there[:3])}{more}). Choose a new or an empty "
            "folder."
        )


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it is renamed to `path` if the body succeeds."""
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # temporary files are private, the result is not
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; it is renamed to `path` if the body succeeds."""
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
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(as_json(value))


def as_json(value: Any) -> bytes:
    """JSON with line breaks. Bytes of a file name that are not UTF-8 are written as JSON's escapes."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, so that of two processes that start together one does the work and the other waits."""
    with explained("lock", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also when the process is killed
        yield


class CacheEntry(NamedTuple):
    """A decoded dataset, a file of features, or a rendering of `glyphs`."""

    kind: str
    path: Path
    size: int  # bytes
    used: float  # when it was last read or written, if the file system records that (seconds since 1970)

    @property
    def place(self) -> str:
        """The folder or tar of a decoded dataset; "" if that is not known."""
        try:
            return str(json.loads((self.path / "meta.json").read_text(encoding="utf-8"))["place"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def cache_entries() -> list[CacheEntry]:
    """Every entry of the cache, the largest first."""
    found = []
    for kind in CACHE_KINDS:
        folder = cache_root() / kind
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.suffix != ".lock":
                stats = [p.stat() for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file()]
                used = max((max(s.st_atime, s.st_mtime) for s in stats), default=0.0)
                found.append(CacheEntry(kind, path, sum(s.st_size for s in stats), used))
    return sorted(found, key=lambda entry: -entry.size)


def remove_cached(entries: Iterable[CacheEntry]) -> None:
    """Delete entries. A program that has one open can use it until it ends. Empty lock files remain."""
    for entry in entries:
        with explained("remove", entry.path):
            if entry.path.is_dir():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink(missing_ok=True)
