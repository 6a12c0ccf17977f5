"""What of this machine the process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """The cores this process may use, which a container or `taskset` may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
