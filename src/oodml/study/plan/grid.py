"""The grid of a study: every run it asks for, checked before the first one starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from oodml._errors import OodmlError
from oodml.config import RunConfig
from oodml.shift import Split
from oodml.study.plan.settings import StudyConfig, teacher_label


@dataclass(frozen=True)
class PlannedRun:
    """One run of the grid: its identity, its place, its settings (without a folder yet), what follows it, and the run
    that must be done before it."""

    id: str
    method: str
    split: Split
    seed: int
    config: RunConfig
    shots: tuple[int, ...] = ()
    episodes: int = 10
    few_shot: Mapping[str, Any] = field(default_factory=dict)
    transfer: tuple[Any, ...] = ()
    teacher: str | None = None


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


def points(study: StudyConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every point of the grid, which each split and seed then has: its label, its method's label, and what its other
    axes set."""
    axes: list[dict[str, dict[str, Any]]] = [study.settings] if study.settings else []
    if study.backbones:
        axes.append({label: {"backbone": name} for label, name in study.backbones.items()})
    if study.embedding_dims:
        axes.append({f"d{size}": {"embedding_dim": size} for size in study.embedding_dims})
    for method, *others in product(study.methods, *(axis.items() for axis in axes)):
        chosen = {key: value for _, settings in others for key, value in settings.items()}
        yield " · ".join([method, *(name for name, _ in others)]), method, chosen


def _expand(study: StudyConfig, splits: list[Split]) -> Iterator[PlannedRun]:
    for label, method, chosen in points(study):
        for split, seed in product(splits, study.seeds):
            config, teacher = _configure(study, method, chosen, split, seed)
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
                teacher=teacher,
            )


def _configure(
    study: StudyConfig, label: str, chosen: dict[str, Any], split: Split, seed: int
) -> tuple[RunConfig, str | None]:
    """The settings of a method's run, and the ID of its teacher: of that label's run with all else equal."""
    settings, teacher = method_settings(study.methods[label]), None
    if (taught_by := teacher_label(settings["method"])) is not None:
        teacher = _configure(study, taught_by, chosen, split, seed)[0].hash()
        settings["method"] = with_teacher(settings["method"], teacher)
    values = {**study.run, **settings, **chosen}
    return RunConfig(**values, dataset=study.dataset, split=split, seed=seed), teacher


def with_teacher(method: dict[str, Any], run: str) -> dict[str, Any]:
    """The method with the ID of a run in place of its teacher's label, whether the teacher is its own or its base's."""
    if "teacher" in method:
        return {**method, "teacher": {"run": run}}
    return {**method, "base": with_teacher(method["base"], run)}


def method_settings(method: str | dict[str, Any]) -> dict[str, Any]:
    """The run settings of one method: itself, and those under its `run`."""
    if isinstance(method, str):
        return {"method": method}
    return {**method.get("run", {}), "method": {key: value for key, value in method.items() if key != "run"}}
