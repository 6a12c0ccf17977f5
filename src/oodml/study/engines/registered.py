"""What this process has registered in addition to the package, sent to its workers.

A worker does not import the caller's script: that would run it again, unless it is written with a guard. What modules
and entry points have registered is sent to it; what is defined in the script itself cannot be.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any, NoReturn

from oodml._errors import OodmlError
from oodml._registry import Record
from oodml.data import batch_sampler_records, dataset_records, register_batch_sampler, register_dataset
from oodml.evaluation import metric_records, register_metric
from oodml.losses import loss_records, register_loss
from oodml.methods import method_records, register_method
from oodml.miners import miner_records, register_miner
from oodml.models.backbones import backbone_records, register_backbone

_REGISTRIES: dict[str, tuple[Callable[[], list[Record]], Callable[..., Any]]] = {
    "backbone": (backbone_records, register_backbone),
    "batch sampler": (batch_sampler_records, register_batch_sampler),
    "dataset": (dataset_records, register_dataset),
    "loss": (loss_records, register_loss),
    "method": (method_records, register_method),
    "metric": (metric_records, register_metric),
    "miner": (miner_records, register_miner),
}
_FACTS = ("summary", "paper", "aliases", "default_miner", "has_parameters")


@dataclass(frozen=True)
class Unreachable:
    """Replaces a factory that cannot be sent to a worker; using it raises an error that explains why."""

    kind: str
    name: str
    options: tuple[str, ...]

    @property
    def __signature__(self) -> Signature:
        """The signature of the factory, so that the settings of a run are checked as when it was planned."""
        return Signature([Parameter(each, Parameter.KEYWORD_ONLY, default=None) for each in self.options])

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise OodmlError(
            f"The {self.kind} {self.name!r} cannot be sent to the worker processes of the study, which do not import "
            "your script. Move it, as a function or class with a name, into a module that the script imports, or give "
            "it an entry point, or pass workers=1."
        )


@dataclass(frozen=True)
class Registration:
    """One registered name for a worker; its factory is pickled on its own, so that a failure concerns it alone."""

    kind: str
    name: str
    facts: dict[str, Any]
    factory: bytes | None
    replacement: Unreachable


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """Replace `__main__` by an empty module: a process started here does not run the caller's script, and nothing of
    it can be pickled."""
    ours = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = ours


def registrations() -> list[Registration]:
    """What is registered in this process and not by the package itself."""
    return [
        _registration(kind, record)
        for kind, (records, _) in _REGISTRIES.items()
        for record in records()
        if not str(getattr(record.factory, "__module__", "")).startswith("oodml.")
    ]


def register_all(given: list[Registration]) -> None:
    """Register what another process has registered, replacing what has the same name."""
    for each in given:
        factory = each.replacement if each.factory is None else _unpickled(each)
        _REGISTRIES[each.kind][1](each.name, factory, replace=True, **each.facts)


def _registration(kind: str, record: Record) -> Registration:
    facts = {name: getattr(record, name) for name in _FACTS} | {"search": dict(record.search)}
    replacement = Unreachable(kind, record.name, _options(record.factory))
    return Registration(kind, record.name, facts, _pickled(record.factory), replacement)


def _options(factory: Callable[..., Any]) -> tuple[str, ...]:
    wanted = inspect.signature(factory).parameters.values()
    return tuple(each.name for each in wanted if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))


def _pickled(factory: Callable[..., Any]) -> bytes | None:
    try:
        with hidden_main():
            return pickle.dumps(factory)
    except Exception:  # pickle raises many kinds of errors
        return None


def _unpickled(given: Registration) -> Callable[..., Any]:
    try:
        return pickle.loads(given.factory or b"")
    except Exception:  # its module cannot be found, or fails here
        return given.replacement
