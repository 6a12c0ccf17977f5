"""The registry of miners, and how a miner is made from its name."""

from __future__ import annotations

from typing import Any

import torch

from oodml._checks import require_generator
from oodml._errors import OodmlError
from oodml._registry import Registry
from oodml.miners.base import Miner
from oodml.miners.foreign import as_miner

REGISTRY = Registry("miner", "oodml.miners", "oodml.miners", context=("generator",))

register_miner = REGISTRY.register
list_miners = REGISTRY.names
miner_records = REGISTRY.records
miner_record = REGISTRY.__getitem__


def make_miner(name: str, *, generator: torch.Generator | None = None, **hyperparameters: Any) -> Miner:
    """Build a miner by name, e.g. `make_miner("distance", upper=None)`.

    `generator` is the miner's own source of randomness; None: torch's default one.
    """
    require_generator(generator)
    made = REGISTRY.make(name, context={"generator": generator}, **hyperparameters)
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

    Any callable of `(embeddings, labels)` is accepted: see `Foreign`.
    """
    if isinstance(spec, str):
        return make_miner(spec, generator=generator)
    if isinstance(spec, dict) and "name" in spec:
        return make_miner(**{"generator": generator, **spec})
    return as_miner(spec, argument)
