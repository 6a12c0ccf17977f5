"""Keep matrix work that cannot use more on one thread.

A singular value decomposition of 100 × 100 takes 2 ms on one thread. Two threads gain nothing on it, and wait for
each other at every column: 135 ms were measured on a busy machine.
"""

from __future__ import annotations

import contextlib
from functools import cache

import numpy  # noqa: F401  the libraries to be limited must be loaded before they are looked for
import scipy.linalg  # noqa: F401
from threadpoolctl import ThreadpoolController


def one_thread_if(small: bool) -> contextlib.AbstractContextManager:
    """Limit the linear algebra of numpy and scipy to one thread for a while, if `small`."""
    return _controller().limit(limits=1, user_api="blas") if small else contextlib.nullcontext()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
