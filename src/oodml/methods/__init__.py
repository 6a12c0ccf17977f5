"""Methods: how a batch becomes a loss. They wrap losses, miners and one another; the training loop knows none of them.

The class of every registered method can be imported from here: `oodml.methods.S2SD(base="margin")`.
"""

from __future__ import annotations

from typing import Any

from oodml.methods.base import Batch, Context, Method
from oodml.methods.objective import check_objective, make_objective
from oodml.methods.registry import (
    REGISTRY,
    list_methods,
    make_method,
    method_record,
    method_records,
    method_spec,
    register_method,
    wrapped_option,
)
from oodml.methods.wrapper import Wrapper

__all__ = [
    "Batch",
    "Context",
    "Method",
    "Wrapper",
    "check_objective",
    "list_methods",
    "make_method",
    "make_objective",
    "method_record",
    "method_records",
    "method_spec",
    "register_method",
    "wrapped_option",
]


def __getattr__(name: str) -> Any:
    return REGISTRY.class_named(name)


def __dir__() -> list[str]:
    return [*__all__, *REGISTRY.classes()]
