"""The grid of a study: every run it asks for, checked before the first one starts, and the plan on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from oodml._errors import OodmlError
from oodml.config import RunConfig
from oodml.shift import Split
from oodml.study.settings import StudyConfig, teacher_label
from oodml.study.store import Store, open_store

SETTINGS, PLAN = "study.yaml", "plan.json"


@dataclass(frozen=True)
class PlannedRun:
    """One run of the grid: its ID and labels, its settings (without a folder yet), what is computed after it, and the
    run that must be done before it.

    `match` is the size that all test sets of the study are reduced to, (classes, images per class).
    """

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
    match: tuple[int, int] | None = None


@dataclass(frozen=True)
class RunEntry:
    """A run in the plan of a study on disk."""

    id: str
    method: str
    split: str
    seed: int


def plan(study: StudyConfig, splits: list[Split], match: tuple[int, int] | None = None) -> list[PlannedRun]:
    """Every run of the grid; settings are checked here, before any of them starts.

    Two labels for the same settings are refused: both would have the same run.
    """
    runs: dict[str, PlannedRun] = {}
    for run in _expand(study, splits, match):
        if run.id in runs:
            first = runs[run.id].method
            raise OodmlError(
                f"{first!r} and {run.method!r} are the same run on {run.split.name} (seed {run.seed}): their settings "
                "do not differ. Remove one of them."
            )
        runs[run.id] = run
    return list(runs.values())


def points(study: StudyConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every point of the grid without splits and seeds: its label, its method's label, and what its other axes set."""
    axes: list[dict[str, dict[str, Any]]] = [study.settings] if study.settings else []
    if study.backbones:
        axes.append({label: {"backbone": name} for label, name in study.backbones.items()})
    if study.embedding_dims:
        axes.append({f"d{size}": {"embedding_dim": size} for size in study.embedding_dims})
    for method, *others in product(study.methods, *(axis.items() for axis in axes)):
        chosen = {key: value for _, settings in others for key, value in settings.items()}
        yield " · ".join([method, *(name for name, _ in others)]), method, chosen


def _expand(study: StudyConfig, splits: list[Split], match: tuple[int, int] | None) -> Iterator[PlannedRun]:
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
                match=match,
            )


def _configure(
    study: StudyConfig, label: str, chosen: dict[str, Any], split: Split, seed: int
) -> tuple[RunConfig, str | None]:
    """The settings of a method's run, and the ID of its teacher: the run of that label with all else equal."""
    settings, teacher = method_settings(study.methods[label]), None
    if (teacher_method := teacher_label(settings["method"])) is not None:
        teacher = _configure(study, teacher_method, chosen, split, seed)[0].hash()
        settings["method"] = with_teacher(settings["method"], teacher)
    values = {**study.run, **settings, **chosen}
    return RunConfig(**values, dataset=study.dataset, split=split, seed=seed), teacher


def with_teacher(method: dict[str, Any], run: str) -> dict[str, Any]:
    """The method with the ID of a run instead of its teacher's label, in the method itself or in its base."""
    if "teacher" in method:
        return {**method, "teacher": {"run": run}}
    return {**method, "base": with_teacher(method["base"], run)}


def method_settings(method: str | dict[str, Any]) -> dict[str, Any]:
    """The run settings of one method: the method, and those under its `run`."""
    if isinstance(method, str):
        return {"method": method}
    return {**method.get("run", {}), "method": {key: value for key, value in method.items() if key != "run"}}


def save_plan(planned: list[PlannedRun], store: Store, match: tuple[int, int] | None = None) -> None:
    """Write which runs a study has, so that it can be read without the code and data that planned it.

    `match` is the size that all test sets are reduced to, (classes, images per class); None: that of the finished runs.
    """
    runs = [{"id": run.id, "method": run.method, "split": run.split.name, "seed": run.seed} for run in planned]
    store.write_json(PLAN, {"format": 1, "match": match, "runs": runs})


def load_plan(store: Store) -> list[RunEntry]:
    """Which runs a study has."""
    return [RunEntry(**each) for each in _plan(store)["runs"]]


def saved_match(store: Store) -> tuple[int, int] | None:
    """The size that all test sets are reduced to, if the plan has it."""
    return _plan(store).get("match")


def _plan(store: Store) -> dict[str, Any]:
    held = store.read_json(PLAN)
    if held is None:
        raise OodmlError(f"{store.url} holds no study ({PLAN} is missing). Run one with `oodml study run`.")
    return held


def load_settings(folder: str | Path | Store) -> dict[str, Any]:
    """The settings of a study as in its study.yaml, unchecked: what it needs may not be registered here."""
    store = open_store(folder)
    content = store.read(SETTINGS)
    if content is None:
        raise OodmlError(f"{store.url} holds no study ({SETTINGS} is missing). Run one with `oodml study run`.")
    try:
        held = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:
        raise OodmlError(f"{store.url}/{SETTINGS} is damaged ({error}). Remove it and run the study again.") from error
    if not isinstance(held, dict):
        raise OodmlError(f"{store.url}/{SETTINGS} holds no settings of a study. Remove it and run the study again.")
    return held
