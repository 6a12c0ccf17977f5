"""A store behind a URL: runs work in a scratch folder of their machine and are copied to the store when done."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec

from oodml._errors import OodmlError
from oodml._files import atomic_file, cache_root
from oodml.study.store import FAILED, RESULT, Store

HEARTBEAT = 20.0  # seconds between two renewals of a claim
STALE = 5  # heartbeats after which a claim has expired: its machine is gone
# What is copied; the result last, because it means that the others are there.
KEPT = ("config.yaml", "metrics.jsonl", "embedder.safetensors", "embeddings.safetensors", RESULT)


class RemoteStore(Store):
    """Objects below a URL. Without locks two machines may both do a run at worst; its result stays whole."""

    def __init__(self, url: str, heartbeat: float = HEARTBEAT) -> None:
        self.url, self.heartbeat = url.rstrip("/"), heartbeat
        self._connect()
        self.root = cache_root() / "studies" / hashlib.sha256(self.url.encode()).hexdigest()[:16]

    def _connect(self) -> None:
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
