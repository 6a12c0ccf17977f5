"""Engines: where the runs of a study are executed. An engine takes runs and gives each back with its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from oodml._errors import OodmlError, unknown_name
from oodml.study.engines.execute import Outcome
from oodml.study.grid import PlannedRun
from oodml.study.store import Store

Engine = Callable[[list[PlannedRun], Store], Iterator[tuple[PlannedRun, Outcome]]]
ENGINES = ("local", "ray")


def make_engine(name: str, **options: Any) -> Engine:
    """`local` (workers=N): processes on this machine; `ray` (address=..., cpus=1, gpus=...): tasks of a Ray cluster."""
    given = {key: value for key, value in options.items() if value is not None}
    if name == "local":
        from oodml.study.engines.local import LocalEngine

        return LocalEngine(**_checked(name, given, ("workers",)))
    if name == "ray":
        from oodml.study.engines.ray import RayEngine

        return RayEngine(**_checked(name, given, ("address", "cpus", "gpus")))
    raise unknown_name("engine", name, ENGINES)


def _checked(engine: str, given: dict[str, Any], known: Iterable[str]) -> dict[str, Any]:
    for key in given.keys() - set(known):
        raise OodmlError(f"The engine {engine!r} has no option {key!r}; it takes {', '.join(known)}.")
    return given


__all__ = ["ENGINES", "Engine", "make_engine"]
