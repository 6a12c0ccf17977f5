"""Initial weights from a seed of their own: building a model never moves the program's global random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_seed(seed: int) -> Iterator[None]:
    """Inside, torch's initialisers draw from `seed`; afterwards the global generator is where it was.

    Only the CPU generator is seeded (`torch.manual_seed` would also reset those of every GPU): models are built on the
    CPU and moved afterwards, so a seed gives the same weights on every device.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
