"""What this process has registered beside the package, handed on to its workers.

A worker does not import the caller's script: that would run it again, unless it is written with a guard. What modules
and entry points have registered reaches it all the same; what stands in the script itself cannot.
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
    "data set": (dataset_records, register_dataset),
    "loss": (loss_records, register_loss),
    "method": (method_records, register_method),
    "metric": (metric_records, register_metric),
    "miner": (miner_records, register_miner),
}
_FACTS = ("summary", "paper", "aliases", "default_miner", "has_parameters")


@dataclass(frozen=True)
class Unreachable:
    """Stands for a factory that no worker can have: whatever a run asks of it, it says why."""

    kind: str
    name: str
    options: tuple[str, ...]

    @property
    def __signature__(self) -> Signature:
        """That of the factory, so that the settings of a run are checked as they were when it was planned."""
        return Signature([Parameter(each, Parameter.KEYWORD_ONLY, default=None) for each in self.options])

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise OodmlError(
            f"The {self.kind} {self.name!r} cannot reach the worker processes of the study, which do not import your "
            "script. Move it, as a function or class with a name, into a module that the script imports, or give it an "
            "entry point, or pass workers=1."
        )


@dataclass(frozen=True)
class Registration:
    """One registered name on its way to a worker; its factory is pickled, so that one lost is lost alone."""

    kind: str
    name: str
    facts: dict[str, Any]
    factory: bytes | None
    stand_in: Unreachable


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """Within it `__main__` is empty: a process that is started does not run the caller's script, nothing of it can be
    pickled."""
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


def take_in(given: list[Registration]) -> None:
    """Register what another process has registered; in place of what was there, as it was replaced there too."""
    for each in given:
        factory = each.stand_in if each.factory is None else _unpickled(each)
        _REGISTRIES[each.kind][1](each.name, factory, replace=True, **each.facts)


def _registration(kind: str, record: Record) -> Registration:
    facts = {name: getattr(record, name) for name in _FACTS} | {"search": dict(record.search)}
    stand_in = Unreachable(kind, record.name, _options(record.factory))
    return Registration(kind, record.name, facts, _pickled(record.factory), stand_in)


def _options(factory: Callable[..., Any]) -> tuple[str, ...]:
    wanted = inspect.signature(factory).parameters.values()
    return tuple(each.name for each in wanted if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))


def _pickled(factory: Callable[..., Any]) -> bytes | None:
    try:
        with hidden_main():
            return pickle.dumps(factory)
    except Exception:  # pickle has no one error for what it cannot do
        return None


def _unpickled(given: Registration) -> Callable[..., Any]:
    try:
        return pickle.loads(given.factory or b"")
    except Exception:  # its module cannot be found by its name, or fails there
        return given.stand_in
