"""Memory that a CPU run frees is kept for its next step."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's settings
_ALWAYS_ACCEPTED = 32 * 2**20  # what older versions of glibc take at most


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, where that can be chosen (glibc): True.

    Every training step allocates the same arrays and frees them. By default they go back to the system each time, and
    come back as pages that have to be faulted in one by one: up to half the time of a step of a small network.
    """
    try:
        choose = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    large = 2**30
    kept = choose(_MMAP_THRESHOLD, large) or choose(_MMAP_THRESHOLD, _ALWAYS_ACCEPTED)
    return bool(kept and choose(_TRIM_THRESHOLD, large))
