"""The plan in a study's folder: its settings, and which runs it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oodml._errors import OodmlError
from oodml.study.plan.grid import PlannedRun
from oodml.study.store import Store, open_store

SETTINGS, PLAN = "study.yaml", "plan.json"


@dataclass(frozen=True)
class Place:
    """Where a run stands in its study."""

    id: str
    method: str
    split: str
    seed: int


def save_plan(planned: list[PlannedRun], store: Store, match: tuple[int, int] | None = None) -> None:
    """Write which runs a study has, so that it can be read without the code and data that planned it.

    `match` is the size that all test sets are reduced to, (classes, images a class); None: what the finished runs have.
    """
    runs = [{"id": run.id, "method": run.method, "split": run.split.name, "seed": run.seed} for run in planned]
    store.write_json(PLAN, {"format": 1, "match": match, "runs": runs})


def load_plan(store: Store) -> list[Place]:
    """Which runs a study has."""
    return [Place(**each) for each in _plan(store)["runs"]]


def saved_match(store: Store) -> tuple[int, int] | None:
    """The size that all test sets are reduced to, if the plan says it."""
    return _plan(store).get("match")


def _plan(store: Store) -> dict[str, Any]:
    held = store.read_json(PLAN)
    if held is None:
        raise OodmlError(f"{store.url} holds no study (there is no {PLAN} in it). Run one with `oodml study run`.")
    return held


def load_settings(folder: str | Path | Store) -> dict[str, Any]:
    """The settings of a study as its study.yaml has them, unchecked: what it needs may not be registered here."""
    store = open_store(folder)
    content = store.read(SETTINGS)
    if content is None:
        raise OodmlError(f"{store.url} holds no study (there is no {SETTINGS} in it). Run one with `oodml study run`.")
    try:
        held = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:
        raise OodmlError(f"{store.url}/{SETTINGS} is damaged ({error}). Remove it and run the study again.") from error
    if not isinstance(held, dict):
        raise OodmlError(f"{store.url}/{SETTINGS} holds no settings of a study. Remove it and run the study again.")
    return held
