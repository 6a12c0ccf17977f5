"""The grid of a study: every run it asks for, checked before the first one starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from oodml._errors import OodmlError
from oodml.config import RunConfig
from oodml.shift import Split
from oodml.study.plan.settings import StudyConfig


@dataclass(frozen=True)
class PlannedRun:
    """One run of the grid: its identity, its place, its settings (without a folder yet), what follows it."""

    id: str
    method: str
    split: Split
    seed: int
    config: RunConfig
    shots: tuple[int, ...] = ()
    episodes: int = 10
    few_shot: Mapping[str, Any] = field(default_factory=dict)
    transfer: tuple[Any, ...] = ()


def plan(study: StudyConfig, splits: list[Split]) -> list[PlannedRun]:
    """Every run of the grid; settings are checked here, before any of them starts.

    Two labels for the same settings are refused: one of them would stand for the other's run.
    """
    runs: dict[str, PlannedRun] = {}
    for run in _expand(study, splits):
        if run.id in runs:
            first = runs[run.id].method
            raise OodmlError(
                f"{first!r} and {run.method!r} are the same run on {run.split.name} (seed {run.seed}): their settings "
                "do not differ. Take one of them out."
            )
        runs[run.id] = run
    return list(runs.values())


def points(study: StudyConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """The label and the run settings of every point of the grid, which each split and seed then has."""
    axes = [{label: _method_settings(method) for label, method in study.methods.items()}]
    if study.settings:
        axes.append(study.settings)
    if study.backbones:
        axes.append({label: {"backbone": name} for label, name in study.backbones.items()})
    if study.embedding_dims:
        axes.append({f"d{size}": {"embedding_dim": size} for size in study.embedding_dims})
    for point in product(*(axis.items() for axis in axes)):
        chosen = {key: value for _, settings in point for key, value in settings.items()}
        yield " · ".join(name for name, _ in point), {**study.run, **chosen}


def _expand(study: StudyConfig, splits: list[Split]) -> Iterator[PlannedRun]:
    for label, settings in points(study):
        for split, seed in product(splits, study.seeds):
            config = RunConfig(**settings, dataset=study.dataset, split=split, seed=seed)
            yield PlannedRun(
                config.hash(),
                label,
                split,
                seed,
                config,
                shots=tuple(study.shots or ()),
                episodes=study.episodes,
                few_shot=study.few_shot,
                transfer=tuple(study.transfer or ()),
            )


def _method_settings(method: str | dict[str, Any]) -> dict[str, Any]:
    """The run settings of one method: itself, and those under its `run`."""
    if isinstance(method, str):
        return {"method": method}
    return {**method.get("run", {}), "method": {key: value for key, value in method.items() if key != "run"}}
