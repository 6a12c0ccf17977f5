"""Where the runs of a study are: one folder per run, named by the hash of its settings.

A store is a folder, or any URL that fsspec knows (s3://, gs://, …), so that machines need no common disk. A run is done
when its result.json is there, which is written last and whole; whoever works on a run holds a claim on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml._files import as_json, atomic_file, cache_root, check_holds_only, explained

EMBEDDINGS = "embeddings.safetensors"
AUDITED = "data.json"  # which images an audit in this folder is about
RESULT, FAILED, FEW_SHOT, TRANSFER = "result.json", "failed.json", "few_shot.json", "transfer.json"
IDENTITIES = "identities.json"
HEARTBEAT = 20.0  # seconds between two renewals of a claim
STALE = 5  # heartbeats after which a claim has expired: its machine is gone
# What is copied; the result last, because it means that the others are there.
KEPT = ("config.yaml", "metrics.jsonl", "embedder.safetensors", "embeddings.safetensors", RESULT)


@dataclass(frozen=True)
class Identities:
    """Runs of an earlier version: their names today, or why they are stale (they would have another result today)."""

    renamed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stale: Mapping[str, str] = field(default_factory=dict)
    _folders: Mapping[str, str] = field(init=False, repr=False)  # new name -> folder

    def __post_init__(self) -> None:
        folders = {new: old for old, names in self.renamed.items() for new in names}
        object.__setattr__(self, "_folders", folders)

    def folder(self, run_id: str) -> str:
        """The name of the folder of a run."""
        return self._folders.get(run_id, run_id)

    @property
    def known(self) -> set[str]:
        return {*self.renamed, *self.stale}

    def to_json(self) -> dict[str, Any]:
        return {"renamed": {old: list(names) for old, names in self.renamed.items()}, "stale": dict(self.stale)}

    @classmethod
    def from_json(cls, held: Any) -> Identities:
        if held is None:
            return cls()
        return cls({old: tuple(names) for old, names in held["renamed"].items()}, held["stale"])


class Store:
    """A folder of run folders on this machine."""

    def __init__(self, root: str | Path) -> None:
        self.url = str(root)
        self.root = Path(root)

    # -- files, by their name below the root -----------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """A file's content; None where there is none."""
        path = self.root / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise OodmlError(f"{path} cannot be read ({error}).") from error

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        with atomic_file(self.root / name) as temporary:
            temporary.write_bytes(content)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """The names in a folder below the root."""
        path = self.root / folder
        found = (each.name for each in path.iterdir()) if path.is_dir() else ()
        return sorted(name for name in found if not name.startswith("."))  # those are files being written

    def check_folder(self, kind: str, marks: Iterable[str]) -> None:
        """Refuse a folder with other files, unless it holds one of the files that mark a study or audit (`kind`)."""
        check_holds_only(kind, self.root, marks)

    def audited(self) -> dict[str, Any] | None:
        """Which images an audit in this folder is about; None without an audit, or where the file is another one."""
        held = self.read_json(AUDITED)
        return held if isinstance(held, dict) and {"root", "fingerprint"} <= held.keys() else None

    def read_json(self, name: str) -> Any | None:
        content = self.read(name)
        try:
            return None if content is None else json.loads(content)
        except ValueError as error:
            raise OodmlError(
                f"{self.url}/{name} is damaged ({error}). Remove it and run again: its content is computed again."
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, as_json(value))

    # -- runs ------------------------------------------------------------------------------------------------------

    @cached_property
    def identities(self) -> Identities:
        """What the runs of an earlier version are called now."""
        return Identities.from_json(self.read_json(IDENTITIES))

    def adopt(self, identities: Identities, write: bool = True) -> None:
        """Find runs by this table from now on."""
        if write and identities != self.identities:
            self.write_json(IDENTITIES, identities.to_json())
        self.__dict__["identities"] = identities

    def run_file(self, run_id: str, name: str) -> str:
        """The name of a run's file below the root."""
        return f"runs/{self.identities.folder(run_id)}/{name}"

    def folder(self, run_id: str) -> Path:
        """Where a run works on this machine."""
        return self.root / "runs" / self.identities.folder(run_id)

    def publish(self, run_id: str) -> None:
        """Make what a run wrote into `folder` part of the store."""

    def fetch(self, run_id: str, names: Iterable[str]) -> Path:
        """A folder of this machine that holds these files of a run."""
        return self.folder(run_id)

    def result(self, run_id: str) -> dict[str, Any] | None:
        """What a finished run found; None when it has not finished. Parsed once per process while the file is the same:
        do not change it."""
        path = self.root / self.run_file(run_id, RESULT)
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _parsed(path, found.st_mtime_ns, found.st_size)

    def failure(self, run_id: str) -> str | None:
        """Why a run failed last time, as a traceback; None when it did not."""
        held = self.read_json(self.run_file(run_id, FAILED))
        return None if held is None else held["traceback"]

    def record_failure(self, run_id: str, traceback: str) -> None:
        self.write_json(self.run_file(run_id, FAILED), {"traceback": traceback})

    def clear_failure(self, run_id: str) -> None:
        self.remove(self.run_file(run_id, FAILED))

    @contextlib.contextmanager
    def claim(self, run_id: str) -> Iterator[bool]:
        """Whether this process may work on the run; False while another one does. The claim ends with the process."""
        path = self.root / ".locks" / run_id
        with explained("lock", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def is_claimed(self, run_id: str) -> bool:
        """Whether a process works on the run now."""
        if not (self.root / ".locks" / run_id).exists():
            return False
        with self.claim(run_id) as ours:
            return not ours


class RemoteStore(Store):
    """Objects below a URL. Without locks two machines may both do a run at worst; its result stays whole."""

    def __init__(self, url: str, heartbeat: float = HEARTBEAT) -> None:
        self.url, self.heartbeat = url.rstrip("/"), heartbeat
        self._connect()
        self.root = cache_root() / "studies" / hashlib.sha256(self.url.encode()).hexdigest()[:16]

    def _connect(self) -> None:
        import fsspec

        try:
            self.fs, self.base = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise OodmlError(f"The store {self.url!r} cannot be opened: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        # Connections cannot be sent to other processes, and another machine has another scratch folder.
        return {"url": self.url, "heartbeat": self.heartbeat}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _path(self, name: str) -> str:
        return f"{self.base}/{name}"

    def read(self, name: str) -> bytes | None:
        try:
            return self.fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OodmlError(f"{self.url}/{name} cannot be read ({error}).") from error

    def write(self, name: str, content: bytes) -> None:
        """One object, written whole; where the store is a file system, moved into place."""
        path = self._path(name)
        try:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            if "file" not in self.fs.protocol:
                self.fs.pipe_file(path, content)
                return
            with atomic_file(Path(path)) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            raise OodmlError(f"{self.url}/{name} cannot be written ({error}).") from error

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self._path(name))

    def names(self, folder: str) -> list[str]:
        try:
            self.fs.invalidate_cache()
            found = [each.rstrip("/").rpartition("/")[2] for each in self.fs.ls(self._path(folder), detail=False)]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))  # those are files being written

    def check_folder(self, kind: str, marks: Iterable[str]) -> None:
        """Nothing is refused: a process that may write below a URL is not always allowed to list it."""

    def result(self, run_id: str) -> dict[str, Any] | None:
        return self.read_json(self.run_file(run_id, RESULT))

    def publish(self, run_id: str) -> None:
        for name in KEPT:
            path = self.folder(run_id) / name
            if path.exists():
                self.write(self.run_file(run_id, name), path.read_bytes())

    def fetch(self, run_id: str, names: Iterable[str]) -> Path:
        folder = self.folder(run_id)
        for name in names:
            if name.endswith(".safetensors") and (folder / name).exists():
                continue  # large, and always the same
            content = self.read(self.run_file(run_id, name))
            if content is not None:
                with atomic_file(folder / name) as temporary:
                    temporary.write_bytes(content)
        return folder

    def record_failure(self, run_id: str, traceback: str) -> None:
        self.write_json(self.run_file(run_id, FAILED), {"traceback": traceback, "host": socket.gethostname()})

    @contextlib.contextmanager
    def claim(self, run_id: str) -> Iterator[bool]:
        """A file with our name and the time, renewed while we work; of two writers at once the later one has it."""
        if self.is_claimed(run_id):
            yield False
            return
        name, us, stop = f"claims/{run_id}", uuid.uuid4().hex, threading.Event()
        self._sign(name, us)
        held = self.read_json(name)
        if held is None or held["owner"] != us:
            yield False
            return
        beat = threading.Thread(target=self._keep_signing, args=(name, us, stop), daemon=True)
        beat.start()
        try:
            yield True
        finally:
            stop.set()
            beat.join()
            self.remove(name)

    def is_claimed(self, run_id: str) -> bool:
        held = self.read_json(f"claims/{run_id}")
        return held is not None and time.time() - held["at"] < STALE * self.heartbeat

    def _sign(self, name: str, owner: str) -> None:
        self.write_json(name, {"owner": owner, "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()})

    def _keep_signing(self, name: str, owner: str, stop: threading.Event) -> None:
        while not stop.wait(self.heartbeat):
            # A renewal that fails is followed by another, whatever error the driver of the store raised.
            with contextlib.suppress(Exception):
                self._sign(name, owner)


@lru_cache(maxsize=4096)
def _parsed(path: Path, modified: int, size: int) -> Any:
    """The content of a file of this time and size."""
    return Store(path.parent).read_json(path.name)


def open_store(root: str | Path | Store) -> Store:
    """The store at a path or at a URL."""
    if isinstance(root, Store):
        return root
    if "://" in str(root):
        return RemoteStore(str(root))
    return Store(root)
