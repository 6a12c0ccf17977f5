"""The settings of a study: a grid of runs, checked whole before the first one starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from oodml._errors import OodmlError, unknown_name
from oodml.config import RunConfig, explain_settings, read_settings
from oodml.shift import Split


class BuildSplits(BaseModel):
    """How to build the splits of a study from features of its own data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_splits: int = Field(default=5, ge=1)
    backbone: str = "tf_efficientnet_lite0"
    images_per_class: int | None = Field(default=None, ge=1)  # None: all of them
    reverse: bool = False
    removal: bool = True
    fid_mode: str = "class-means"


class StudyConfig(BaseModel):
    """methods × splits × seeds (× backbones × embedding sizes).

    dataset         a name, or {"name": "folder", "root": ...}
    splits          "default", a split file or a list of them, or {"n_splits": 5, ...}: built from the set's features
    methods         names, or {label: method}; a method as in RunConfig
    seeds           one run for each
    backbones, embedding_dims   further axes; None leaves them to `run`
    run             settings shared by all runs, as in RunConfig
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "study"
    dataset: str | dict[str, Any] = "glyphs"
    splits: str | list[str] | BuildSplits = Field(default_factory=BuildSplits)
    methods: dict[str, str | dict[str, Any]]
    seeds: list[int] = Field(default=[0], min_length=1)
    backbones: list[str] | None = Field(default=None, min_length=1)
    embedding_dims: list[int] | None = Field(default=None, min_length=1)
    run: dict[str, Any] = Field(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain_settings(error, type(self)) from None

    @field_validator("methods", mode="before")
    @classmethod
    def _label_methods(cls, value: Any) -> Any:
        """A list of names is short for {name: name}."""
        return {str(name): name for name in value} if isinstance(value, list | tuple) else value

    @field_validator("run", mode="after")
    @classmethod
    def _known_settings(cls, value: dict[str, Any]) -> dict[str, Any]:
        axes = {"dataset", "split", "method", "seed", "out"}
        for key in value:
            if key in axes:
                raise OodmlError(f"run.{key}: the study sets it for every run; use the study's own keys.")
            if key not in RunConfig.model_fields:
                raise unknown_name("setting of run:", key, RunConfig.model_fields.keys() - axes)
        return value

    @classmethod
    def load(cls, path: str | Path, **overrides: Any) -> StudyConfig:
        """Read a YAML file; `overrides` replace its values."""
        return cls(**{**read_settings(path, "study"), **overrides})


@dataclass(frozen=True)
class PlannedRun:
    """One run of the grid: its identity, its place, its settings (without a folder yet)."""

    id: str
    method: str
    split: Split
    seed: int
    config: RunConfig


def plan(study: StudyConfig, splits: list[Split]) -> list[PlannedRun]:
    """Every run of the grid; settings are checked here, before any of them starts."""
    return list(_expand(study, splits))


def _expand(study: StudyConfig, splits: list[Split]) -> Iterator[PlannedRun]:
    backbones: list[str | None] = list(study.backbones) if study.backbones else [None]
    sizes: list[int | None] = list(study.embedding_dims) if study.embedding_dims else [None]
    for (label, method), backbone, size, split, seed in product(
        study.methods.items(), backbones, sizes, splits, study.seeds
    ):
        chosen = {"backbone": backbone, "embedding_dim": size}
        config = RunConfig(
            **{**study.run, **{key: value for key, value in chosen.items() if value is not None}},
            dataset=study.dataset,
            split=split,
            method=method,
            seed=seed,
        )
        axes = [label, *([backbone] if study.backbones else []), *([f"d{size}"] if study.embedding_dims else [])]
        yield PlannedRun(config.hash(), " · ".join(map(str, axes)), split, seed, config)
