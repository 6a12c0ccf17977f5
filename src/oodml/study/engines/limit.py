"""A limit of time on work in this process."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

AGAIN = 3.0  # seconds until somebody who did not listen is told again


class _TimeIsUp(BaseException):
    """Not an Exception: a run must not take it for a failure of its own."""


@contextlib.contextmanager
def stopping_after(seconds: float | None) -> Iterator[None]:
    """Leave the block quietly when the time is up, whatever it waits for (in the main thread; elsewhere it runs on).

    What is interrupted may turn the exception into another one, or swallow it (a thread that was just being started
    does): it is raised again every few seconds until the block is left. While the block cleans up after it, it is not.
    None: no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if not _is_being_handled():
            raise _TimeIsUp

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds), AGAIN)
    try:
        yield
    except _TimeIsUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _is_being_handled() -> bool:
    """Whether what runs now does so because the time is up: in a `finally`, an `except` or on leaving a `with`."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, _TimeIsUp):
        error = error.__context__
    return error is not None
