"""SIGTERM and Ctrl-C ask the loop to save and leave; a second Ctrl-C leaves at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop, saved its state and can go on later."""

    def __init__(self, message: str, signal_name: str = "SIGINT") -> None:
        super().__init__(message)
        number = getattr(signal.Signals, signal_name, signal.SIGINT)  # of another process only the fact is known
        self.exit_code = 128 + number  # as shells have it


class StopRequest:
    """`name` is the signal that asked, or empty."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Inside, the two signals set the request instead of ending the process (in the main thread; nowhere else)."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.name = signal.Signals(number).name

    previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
