"""One seed per run and named child seeds for everything random; the global generators are never touched."""

from __future__ import annotations

import hashlib

import torch


def child_seed(seed: int, *names: object) -> int:
    """A seed in [0, 2⁶³) for a named purpose: the same on every machine, unrelated for different names."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def reseed(generator: torch.Generator, seed: int, *names: object) -> torch.Generator:
    """Start `generator` anew for a named purpose.

    The loop does so before every batch: what a step draws depends on the seed and the step alone, so a resumed run
    draws the same numbers as an uninterrupted one, and no generator state is saved.
    """
    return generator.manual_seed(child_seed(seed, *names))
