"""What ends a run before its last step: a signal, or numbers that are not finite."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and has saved its state; the same command resumes it."""

    def __init__(self, message: str, signal_name: str = "SIGINT") -> None:
        super().__init__(message)
        number = getattr(signal.Signals, signal_name, signal.SIGINT)  # the signal of another process is not known
        self.exit_code = 128 + number  # as shells have it


class StopRequest:
    """`name` is the signal that was received, or empty."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Inside, SIGTERM and Ctrl-C set the request instead of ending the process; a second signal ends it.

    Only the main thread receives signals; in others the request stays empty.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def receive(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.name = signal.Signals(number).name

    previous = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Batch(NamedTuple):
    step: int
    indices: np.ndarray


class LossMonitor:
    """The losses since the last reading, kept on the device so that no step waits for it, and their batches."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.values = torch.zeros(capacity, device=device)
        self.batches: list[_Batch] = []

    @property
    def is_full(self) -> bool:
        return len(self.batches) == len(self.values)

    def record(self, step: int, indices: np.ndarray, loss: Tensor) -> None:
        self.values[len(self.batches)].copy_(loss.detach())  # device to device: no synchronisation
        self.batches.append(_Batch(step, indices))

    @contextlib.contextmanager
    def explaining(self, step: int, indices: np.ndarray, last_checkpoint: str) -> Iterator[None]:
        """Add step, images and checkpoint to the error of a loss; an earlier loss that was not finite comes first."""
        try:
            yield
        except OodmlError as error:
            self.read(last_checkpoint)
            raise OodmlError(f"{error} This was step {step}, on {_images(indices)}. {last_checkpoint}") from error

    def read(self, last_checkpoint: str) -> list[float]:
        """The losses since the last reading; raises at the first one that is not finite. Synchronises."""
        values = self.values[: len(self.batches)].tolist()
        batches, self.batches = self.batches, []
        for value, (step, indices) in zip(values, batches, strict=True):
            if not math.isfinite(value):
                raise OodmlError(
                    f"The loss became {value} at step {step}. Lower the learning rate, use precision='fp32', or look "
                    f"at {_images(indices)}. {last_checkpoint}"
                )
        return values


def _images(indices: np.ndarray, shown: int = 5) -> str:
    more = f" and {len(indices) - shown} more" if len(indices) > shown else ""
    return f"the images {', '.join(map(str, indices[:shown].tolist()))}{more} (positions in the training set)"
