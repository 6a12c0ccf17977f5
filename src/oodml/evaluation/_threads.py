"""Single-threaded tasks side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def run_in_threads(task: Callable[[T], None], items: Iterable[T], workers: int) -> None:
    """`task(item)` for every item, in `workers` threads, whose torch operations run in one thread each.

    PyTorch's number of threads belongs to the calling thread, but setting it also changes what new threads start
    with; that is put back at the end.
    """
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=_one_thread) as pool:
            list(pool.map(task, items))
    finally:
        torch.set_num_threads(before)


def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)  # like the number of threads, a setting of each thread
