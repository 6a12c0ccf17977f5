"""Checkpoints: whole or not at all, written beside the training, and everything a resume needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._files import atomic_file

FORMAT = 2  # 2: the fingerprint of the pictures


def to_cpu(value: Any) -> Any:
    """A copy of nested dicts, lists and tensors on the CPU, independent of what training does next."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(each) for each in value)
    return value


class Writer:
    """Writes files one after the other in a thread, so that the device does not wait for the disk.

    A job is a function; they run in order, at most one set is pending, and an error shows at the next call.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, jobs: list[Callable[[], None]]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(jobs,), name="oodml-writer")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, jobs: list[Callable[[], None]]) -> None:
        try:
            for job in jobs:
                job()
        except BaseException as error:  # handed to the training thread, which raises it
            self._error = error


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    with atomic_file(path) as temporary:
        torch.save({"format": FORMAT, **state}, temporary)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The saved state, or None where there is none; a damaged file is an error, never silently a fresh start."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds for a damaged file
        raise OodmlError(
            f"The checkpoint {path} cannot be read ({type(error).__name__}). It may be damaged: remove it to start "
            "this run again from the beginning."
        ) from error
    if state.get("format") != FORMAT:
        raise OodmlError(
            f"The checkpoint {path} has format {state.get('format')!r}; this version of oodml reads {FORMAT}. "
            "Remove it to start again, or use the version that wrote it."
        )
    return state
