"""Miners: which tuples of a batch a loss looks at. No Python loop over the batch, no device synchronisation.

The class of every registered miner can be imported from here: `oodml.miners.DistanceWeighted`.
`__init__.pyi` has the types that editors and type checkers see; `python docs/build_stubs.py` writes it.
"""

from __future__ import annotations

from typing import Any

from oodml.miners.base import Miner, PairMiner, Pairs, PartnerMiner, Partners, TripletMiner, Triplets
from oodml.miners.registry import (
    REGISTRY,
    build_miner,
    list_miners,
    make_miner,
    miner_record,
    miner_records,
    register_miner,
)

__all__ = [
    "Miner",
    "PairMiner",
    "Pairs",
    "PartnerMiner",
    "Partners",
    "TripletMiner",
    "Triplets",
    "build_miner",
    "list_miners",
    "make_miner",
    "miner_record",
    "miner_records",
    "register_miner",
]


def __getattr__(name: str) -> Any:
    return REGISTRY.class_named(name)


def __dir__() -> list[str]:
    return [*__all__, *REGISTRY.classes()]
