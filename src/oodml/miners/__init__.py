"""Tuple miners: embeddings and labels in, index tensors out; no Python loop over the batch, no device sync."""

from __future__ import annotations

from typing import Any

import torch

from oodml._registry import Registry
from oodml.miners._base import Miner, Pairs, Triplets

_REGISTRY = Registry("miner", "oodml.miners", "oodml.miners", context=("generator",))

register_miner = _REGISTRY.register
list_miners = _REGISTRY.names
miner_records = _REGISTRY.records
miner_record = _REGISTRY.__getitem__


def make_miner(name: str, *, generator: torch.Generator | None = None, **hyperparameters: Any) -> Miner:
    """Build a miner by name, e.g. `make_miner("distance", upper=None)`.

    `generator` is the miner's own source of randomness (on the device of the embeddings); None uses torch's default.
    """
    return _REGISTRY.make(name, context={"generator": generator}, **hyperparameters)


__all__ = ["Miner", "Pairs", "Triplets", "list_miners", "make_miner", "miner_record", "miner_records", "register_miner"]
