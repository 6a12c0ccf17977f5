"""The settings of a study, refused whole where one of them is wrong."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from oodml._errors import OodmlError, unknown_name
from oodml.config import RunConfig, explain_settings, read_settings
from oodml.losses import loss_record
from oodml.methods import method_record, method_spec

FEW_SHOT_OPTIONS = ("steps", "lr", "beta", "batch_size", "views", "exact")
_SET_BY_THE_STUDY = {"dataset", "split", "method", "seed", "out"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain_settings(error, type(self)) from None


class BuildSplits(_Part):
    """How to build the splits of a study from features of its own dataset."""

    n_splits: int = Field(default=5, ge=1)
    backbone: str = "tf_efficientnet_lite0"
    weights: str | None = None  # a file; None: the backbone's own
    images_per_class: int | None = Field(default=None, ge=1)  # None: all of them
    reverse: bool = False
    removal: bool = True
    swaps_per_step: int | None = Field(default=None, ge=1)  # None: by the number of classes
    keep: float = Field(default=0.5, gt=0, le=1)  # share of the images that removal leaves
    fid_mode: str = "class-means"


class OfficialSplits(_Part):
    """The published splits of ooDML: a file that `load_official` reads, at this path or under $OODML_DATA."""

    official: str
    ids: list[int] | None = Field(default=None, min_length=1)  # None: all of them


class StudyConfig(_Part):
    """methods × settings × backbones × embedding sizes × splits × seeds, and what is computed after every run.

    dataset         a name, or {"name": "folder", "root": ...}
    splits          "default", a split file, a list of these, {"n_splits": 5, ...}: built from the dataset's features,
                    or {"official": FILE}: the published ones
    methods         names, or {label: method}; a method as in RunConfig, with `run:` settings of its own. The `teacher`
                    of the method `distil` may be {"method": LABEL}, another method of the study
    settings        {label: run settings}: a further axis, e.g. {"SPC-2": {"samples_per_class": 2}, ...}
    seeds           one run for each
    backbones, embedding_dims   further axes; None leaves them to `run`. Backbones are names, or {label: name}
    shots, episodes few-shot adaptation of every trained run, with this many labelled images per test class;
                    `few_shot`: its other options, as of oodml.few_shot
    transfer        datasets whose default test classes every run is also tested on
    generic         backbones that are scored without training
    run             settings shared by all runs, as in RunConfig
    """

    name: str = "study"
    dataset: str | dict[str, Any] = "glyphs"
    splits: str | list[str] | BuildSplits | OfficialSplits = Field(default_factory=BuildSplits)
    methods: dict[str, str | dict[str, Any]] = Field(default_factory=dict)
    settings: dict[str, dict[str, Any]] | None = Field(default=None, min_length=1)
    seeds: list[int] = Field(default=[0], min_length=1)
    backbones: dict[str, str] | None = Field(default=None, min_length=1)
    embedding_dims: list[int] | None = Field(default=None, min_length=1)
    shots: list[int] | None = Field(default=None, min_length=1)
    episodes: int = Field(default=10, ge=1)
    few_shot: dict[str, Any] = Field(default_factory=dict)
    transfer: list[str | dict[str, Any]] | None = Field(default=None, min_length=1)
    generic: list[str] | None = Field(default=None, min_length=1)
    run: dict[str, Any] = Field(default_factory=dict)

    @field_validator("methods", "backbones", mode="before")
    @classmethod
    def _with_labels(cls, value: Any, info: ValidationInfo) -> Any:
        """A list of names is short for {name: name}."""
        if not isinstance(value, list | tuple):
            return value
        if info.field_name == "backbones":
            _unique([str(name) for name in value], info)
        return {str(name): name for name in value}

    @field_validator("splits", mode="before")
    @classmethod
    def _typed_splits(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return OfficialSplits(**value) if "official" in value else BuildSplits(**value)
        return value

    @field_validator("seeds", "embedding_dims", "shots", "generic", mode="after")
    @classmethod
    def _check_each_once(cls, value: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        return _unique(value, info)

    @field_validator("run", mode="after")
    @classmethod
    def _check_run(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return _check_run_settings(value, "run", info.data.get("methods"))

    @field_validator("methods", mode="after")
    @classmethod
    def _check_methods(cls, value: dict[str, Any]) -> dict[str, Any]:
        for label, method in value.items():
            if isinstance(method, dict):
                _check_run_settings(method.get("run", {}), f"methods.{label}.run", {label: method})
        return value

    @field_validator("few_shot", mode="after")
    @classmethod
    def _check_few_shot(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if key not in FEW_SHOT_OPTIONS:
                raise unknown_name("option of few_shot:", key, FEW_SHOT_OPTIONS)
        return value

    @field_validator("settings", mode="after")
    @classmethod
    def _check_settings(cls, value: dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
        for label, each in (value or {}).items():
            _check_run_settings(each, f"settings.{label}")
        return value

    @model_validator(mode="after")
    def _check_teachers(self) -> StudyConfig:
        for label, method in self.methods.items():
            chain = [label]
            while (teacher := teacher_label(method)) is not None:
                if teacher not in self.methods:
                    raise unknown_name(f"teacher of methods.{chain[-1]}:", teacher, self.methods)
                if teacher in chain:
                    circle = " from ".join(repr(each) for each in [*chain, teacher])
                    raise OodmlError(f"methods.{label}: {circle} is circular. Name a teacher that does not need it.")
                chain.append(teacher)
                method = self.methods[teacher]
        return self

    @model_validator(mode="after")
    def _check_not_empty(self) -> StudyConfig:
        if not self.methods and not self.generic:
            raise OodmlError("A study needs `methods` to train, or `generic` backbones to score without training.")
        return self

    @classmethod
    def load(cls, path: str | Path, **overrides: Any) -> StudyConfig:
        """Read a YAML file; `overrides` replace its values, or with dotted keys parts of them, as `changed` says."""
        return cls(**changed(read_settings(path, "study"), overrides))

    def to_yaml(self) -> str:
        """Every setting, as a study file has it."""
        values = json.loads(self.model_dump_json())
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def teacher_label(method: Any) -> str | None:
    """LABEL of `teacher: {method: LABEL}` in a method or in the base that it wraps; None where there is none."""
    while isinstance(method, Mapping):
        teacher = method.get("teacher")
        if isinstance(teacher, Mapping) and teacher.keys() == {"method"}:
            return str(teacher["method"])
        method = method.get("base")
    return None


def _unique(value: Any, info: ValidationInfo) -> Any:
    """The list, or an error that names the first value that is repeated."""
    repeated = [each for each, count in Counter(value or ()).items() if count > 1]
    if repeated:
        raise OodmlError(f"{info.field_name}: {repeated[0]} is listed more than once. List it once.")
    return value


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a study with changes: `run.epochs` and `methods.S2SD.gamma` change a part, `run` the whole."""
    result = copy.deepcopy(dict(settings))
    for key, value in changes.items():
        if "." in key:
            _change_part(result, key, key, value)
        else:
            result[key] = value
    return result


def _change_part(settings: dict[str, Any], path: str, key: str, value: Any) -> None:
    """Labels may hold dots themselves, so the longest key that fits is taken."""
    found = [name for name in settings if isinstance(name, str) and (path == name or path.startswith(f"{name}."))]
    name = max(found, key=len, default=path.partition(".")[0])
    rest = path[len(name) + 1 :]
    if not rest:
        settings[name] = value
        return
    part = settings.get(name)
    if isinstance(part, str):  # a method by its name alone
        part = {"name": part}
    elif isinstance(part, list) and name in ("methods", "backbones"):
        part = {str(each): each for each in part}
    elif part is None and not found and (name not in StudyConfig.model_fields or name == "methods"):
        raise unknown_name(f"part {name!r} in --set {key}: setting", name, settings)
    part = {} if part is None else part
    if not isinstance(part, dict):
        raise OodmlError(f"{key}: {name!r} is {part!r}, which has no parts. Set {name!r} as a whole.")
    if name == "methods" and not any(rest == label or rest.startswith(f"{label}.") for label in part):
        raise unknown_name("method of the study:", rest.partition(".")[0], part)
    settings[name] = part
    _change_part(part, rest, key, value)


def _check_run_settings(
    settings: dict[str, Any], where: str, methods: Mapping[str, str | dict[str, Any]] | None = None
) -> dict[str, Any]:
    for key in settings:
        if key in _SET_BY_THE_STUDY:
            raise OodmlError(f"{where}.{key}: the study sets it for every run; use the study's own keys.")
        if key not in RunConfig.model_fields:
            error = unknown_name(f"setting of {where}:", key, RunConfig.model_fields.keys() - _SET_BY_THE_STUDY)
            owners = [label for label, method in (methods or {}).items() if _has_option(method, key)]
            hint = f" It is an option of the method: set methods.{owners[0]}.{key} instead." if owners else ""
            raise OodmlError(f"{error}{hint}")
    return settings


def _has_option(method: str | dict[str, Any], key: str) -> bool:
    given = method if isinstance(method, str) else {name: value for name, value in method.items() if name != "run"}
    try:
        spec = method_spec(given)
        loss = spec.get("loss", "margin")
        record = (
            loss_record(loss if isinstance(loss, str) else loss["name"])
            if spec["name"] == "plain"
            else method_record(spec["name"])
        )
    except OodmlError:  # an unknown method is reported elsewhere
        return False
    return key in record.defaults
