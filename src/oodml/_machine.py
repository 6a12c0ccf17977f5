"""What of this machine to use: cores, devices, threads of the linear algebra."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from typing import TYPE_CHECKING

from oodml._errors import OodmlError

if TYPE_CHECKING:
    import torch
    from threadpoolctl import ThreadpoolController


def cores() -> int:
    """The cores this process may use, which a container or `taskset` may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" is a GPU if there is one, else the CPU. Raises if it cannot be used here."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    accepted = "use 'auto', 'cpu', 'cuda' or 'cuda:1'."
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise OodmlError(f"device={str(device)!r} is not a device of torch: {accepted}") from None
    if chosen.type == "cuda":
        _check_cuda(chosen)
    elif chosen.type != "cpu" and not _computes(chosen):
        raise OodmlError(f"device={str(device)!r} cannot compute here: {accepted}")
    return chosen


def _check_cuda(chosen: torch.device) -> None:
    import torch

    if not torch.cuda.is_available():
        raise OodmlError(f"device={str(chosen)!r}: torch finds no CUDA device here. Use device='cpu' or 'auto'.")
    if (chosen.index or 0) >= torch.cuda.device_count():
        raise OodmlError(
            f"device={str(chosen)!r}: this machine has {torch.cuda.device_count()} CUDA devices, counted from 0."
        )


def _computes(chosen: torch.device) -> bool:
    """Whether a number can be written there and read back; `meta` has shapes only, others may need a driver."""
    import torch

    try:
        return float(torch.zeros(1, device=chosen)) == 0
    except Exception:  # every missing backend raises another type
        return False


def one_thread_if(small: bool) -> contextlib.AbstractContextManager:
    """Limit the linear algebra of NumPy and SciPy to one thread inside the context, if `small`.

    A singular value decomposition of 100 × 100 takes 2 ms on one thread, and 135 ms were measured with two on a busy
    machine: the threads wait for each other at every column.
    """
    return _controller().limit(limits=1, user_api="blas") if small else contextlib.nullcontext()


@cache
def _controller() -> ThreadpoolController:
    import numpy  # noqa: F401  it finds libraries that are loaded
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
