"""Tuple miners: embeddings and labels in, index tensors out; no Python loop over the batch, no device sync."""

from __future__ import annotations

from typing import Any

import torch

from oodml._errors import OodmlError
from oodml._registry import Registry
from oodml.miners._base import Miner, Pairs, Triplets
from oodml.miners._checks import require_generator
from oodml.miners._foreign import as_miner

_REGISTRY = Registry("miner", "oodml.miners", "oodml.miners", context=("generator",))

register_miner = _REGISTRY.register
list_miners = _REGISTRY.names
miner_records = _REGISTRY.records
miner_record = _REGISTRY.__getitem__


def make_miner(name: str, *, generator: torch.Generator | None = None, **hyperparameters: Any) -> Miner:
    """Build a miner by name, e.g. `make_miner("distance", upper=None)`.

    `generator` is the miner's own source of randomness (on the device of the embeddings); None uses torch's default.
    """
    require_generator(generator)
    made = _REGISTRY.make(name, context={"generator": generator}, **hyperparameters)
    if not callable(made):
        raise OodmlError(
            f"The factory of miner {name!r} made a {type(made).__name__}; expected a miner, called as "
            "miner(embeddings, labels)."
        )
    return as_miner(made)


def build_miner(
    spec: str | dict[str, Any] | Miner, generator: torch.Generator | None = None, argument: str = "miner"
) -> Miner:
    """A miner from its name, from a dict of `name` and options, or as given; errors call it `argument`.

    A callable from elsewhere will do: see `Foreign`.
    """
    if isinstance(spec, str):
        return make_miner(spec, generator=generator)
    if isinstance(spec, dict) and "name" in spec:
        return make_miner(**{"generator": generator, **spec})
    return as_miner(spec, argument)


__all__ = ["Miner", "Pairs", "Triplets", "list_miners", "make_miner", "miner_record", "miner_records", "register_miner"]
