"""Losses, one per file, with formula and paper in the docstring.

The class of every registered loss can be imported from here: `oodml.losses.Margin(num_classes=100)`.
`__init__.pyi` has the types that editors and type checkers see; `python docs/build_stubs.py` writes it.
"""

from __future__ import annotations

from typing import Any

from oodml.losses.base import Loss
from oodml.losses.proxies import PaperRate, ProxyLoss
from oodml.losses.registry import REGISTRY, list_losses, loss_record, loss_records, make_loss, register_loss
from oodml.losses.tuples import PairLoss, PairMaskLoss, TupleLoss

__all__ = [
    "Loss",
    "PairLoss",
    "PairMaskLoss",
    "PaperRate",
    "ProxyLoss",
    "TupleLoss",
    "list_losses",
    "loss_record",
    "loss_records",
    "make_loss",
    "register_loss",
]


def __getattr__(name: str) -> Any:
    return REGISTRY.class_named(name)


def __dir__() -> list[str]:
    return [*__all__, *REGISTRY.classes()]
