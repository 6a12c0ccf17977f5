"""`RunConfig`: the settings of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from oodml._errors import OodmlError
from oodml._split import as_split
from oodml.config.checks import (
    check_backbone,
    check_batches,
    check_depth,
    check_loggers,
    check_schedule,
    check_views,
)
from oodml.config.identity import run_hash
from oodml.config.protocol import (
    applied,
    batch_values,
    check_protocol,
    default_backbone,
    default_values,
    warmup_epochs,
    warn_without_numbers,
    written_out,
)
from oodml.config.reading import (
    absolute_path,
    explain_settings,
    read_settings,
    split_mapping,
    with_absolute_root,
    write_settings,
)
from oodml.recipes import Setup

_CHECKED = ContextVar("_CHECKED", default=False)  # whether the settings being read were checked before
_INDEPENDENT = {"out", "device", "workers", "logger", "log_every", "checkpoint_every", "quiet", "selection"}


class RunConfig(BaseModel):
    """Everything that decides what a run computes. None means: the value that belongs to backbone, depth and protocol.

    dataset       a name, the path of a folder or tar of class folders, or {"name": ..., "root": ..., options}
    split         "default", a path to a split file, a Split, or a mapping with train and test class names
    backbone      "tiny", any timm name, ...; `weights`: a file of trained weights; `pretrained=False`: none
    method        a method's name, a loss's name, or a dict {"name": "rho", "base": "triplet", ...}
    train         "all", or "head": frozen backbone, cached features, heads only
    epochs/steps  the length, one or the other
    head_lr       learning rate of the heads; None: `lr`
    warmup        epochs at the start in which the backbone is not trained
    cache_side    training views are cut from images of at most this short side in pixels; None: that of evaluation,
                  256 for photographs
    precision     "fp32", "bf16" (mixed), or "auto": bf16 on a GPU
    selection     "val": best epoch on held-out train classes; "val-then-full": that epoch, then a run on all of them;
                  "last"; "test": best test epoch, the papers' habit
    eval_every    epochs between evaluations (with `steps`: steps; None: ten even points)
    grad_cache    images per chunk of the backbone pass, for batches beyond memory; the loss is that of the full batch
    protocol      a paper's settings by name, with the numbers that it has for the dataset of that name;
                  {"name": "oodml", "numbers": "cub200"}: with those of another (a folder of the same images)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False)

    dataset: str | dict[str, Any] = "glyphs"
    split: Any = "default"
    backbone: str | None = None
    weights: str | None = None
    pretrained: bool = True
    method: str | dict[str, Any] | None = None
    embedding_dim: int | None = Field(default=None, ge=1, le=65_536)
    train: Literal["all", "head"] | None = None
    epochs: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=2, le=1_000_000)
    samples_per_class: int | None = Field(default=None, ge=1)
    sampler: str | dict[str, Any] | None = None
    lr: float | None = Field(default=None, gt=0)
    head_lr: float | None = Field(default=None, gt=0)
    weight_decay: float | None = Field(default=None, ge=0)
    schedule: str | dict[str, Any] | None = None
    warmup: float | None = Field(default=None, ge=0)
    frozen_bn: bool | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool | None = None
    views: int | None = Field(default=None, ge=0)
    crop_scale: tuple[float, float] | None = None
    transform: Literal["resized-crop", "crop"] | None = None
    cache_side: int | None = Field(default=None, ge=1, le=65_536)
    selection: Literal["val", "val-then-full", "last", "test"] | None = None
    selection_metric: str = "recall@1"
    eval_every: int | None = Field(default=None, ge=1)
    metrics: tuple[str, ...] | None = Field(default=None, min_length=1)
    grad_cache: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)
    protocol: str | dict[str, Any] | None = None
    out: str | None = None
    device: str = "auto"
    workers: int | None = Field(default=None, ge=0)
    logger: str | tuple[str, ...] | None = None
    log_every: int = Field(default=50, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)
    quiet: bool = False

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain_settings(error, type(self)) from None

    @field_validator("dataset", mode="before")
    @classmethod
    def _known_dataset(cls, value: Any) -> str | dict[str, Any]:
        from oodml.data import dataset_setting

        return dataset_setting(value)

    @field_validator("metrics", mode="before")
    @classmethod
    def _listed_metrics(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @field_validator("split", mode="after")
    @classmethod
    def _readable_split(cls, value: Any) -> Any:
        if value == "default":
            return value
        found = as_split(value)
        return str(value) if isinstance(value, str | Path) else found

    @field_validator("protocol", mode="after")
    @classmethod
    def _known_protocol(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if value is not None:
            check_protocol(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if _CHECKED.get():
            return self
        if self.epochs is not None and self.steps is not None:
            raise OodmlError("A run's length is given in epochs or in steps, not both.")
        if self.schedule is not None:
            check_schedule(self.schedule)
        check_loggers(self.logger)
        check_views(self.crop_scale)
        values = self._filled
        check_depth(values["train"], self.grad_cache)
        check_backbone(values["backbone"])
        check_batches(values["batch_size"], values["samples_per_class"], values["sampler"])
        from oodml.evaluation import check_metrics
        from oodml.methods import make_method

        check_metrics((*(self.metrics or ()), self.selection_metric))
        make_method(values["method"]).check(values["embedding_dim"], values["train"])
        if self.protocol is not None:
            warn_without_numbers(self.protocol, self.dataset_name)
        return self

    @property
    def dataset_name(self) -> str:
        return self.dataset if isinstance(self.dataset, str) else self.dataset["name"]

    @cached_property
    def _filled(self) -> dict[str, Any]:
        """Every setting with its value: the user's, else the protocol's, else that of backbone and depth."""
        from oodml.methods import method_spec

        chosen = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        recipe, numbers = applied(self.protocol, self.dataset_name) if self.protocol is not None else (None, None)
        protocol = recipe.run(numbers, self.backbone) if recipe else {}
        if self.steps is not None:
            protocol.pop("epochs", None)
        known = {"train": "all", "method": "margin", **protocol, **chosen}
        known.setdefault("backbone", default_backbone(known["train"]))
        defaults = default_values(known["backbone"], known["train"])
        if known.keys() & {"epochs", "steps"}:
            defaults.pop("epochs", None)
            defaults.pop("steps", None)
        values = {**dict.fromkeys(type(self).model_fields), **defaults, **known}
        if recipe:
            setup = Setup(numbers, values["backbone"], values["embedding_dim"])
            values["method"] = written_out(method_spec(values["method"]), recipe, setup)
            batch = batch_values(values["method"], recipe)
            values.update({name: value for name, value in batch.items() if getattr(self, name) is None})
            if self.warmup is None:
                values["warmup"] = warmup_epochs(values["method"], recipe, numbers)
        return values

    def resolved(self) -> RunConfig:
        """The same run with every default written out, its method in the long form, and no protocol left to apply."""
        return self._resolved or self

    @cached_property
    def _resolved(self) -> RunConfig | None:
        """None: these settings are resolved already."""
        from oodml.methods import method_spec

        checked = "_filled" in vars(self)  # else read from a finished run, or copied with other values
        values = {**self._filled, "method": method_spec(self._filled["method"]), "protocol": None}
        found = checked_settings(values) if checked else RunConfig(**values)
        vars(found)["_resolved"] = None
        return found

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values, and without what was derived from the former ones.

        No default depends on a setting of `_INDEPENDENT`: with those alone replaced, a resolved copy stays resolved.
        """
        copy = super().model_copy(update=update, deep=deep)
        for name in ("_filled", "_resolved"):
            vars(copy).pop(name, None)
        if update and update.keys() <= _INDEPENDENT:
            derived = vars(self)
            if "_filled" in derived:
                vars(copy)["_filled"] = {**self._filled, **update}
            if derived.get("_resolved", self) is None:
                vars(copy)["_resolved"] = None
        return copy

    def hash(self) -> str:
        """The name of the run: a hash of all that changes its result, see `oodml.config.identity`."""
        return run_hash(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON and YAML have it; a Split object as its class names."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if not isinstance(self.split, str):
            values["split"] = split_mapping(self.split)
        return json.loads(json.dumps(values, default=_plain))

    def save(self, path: str | Path) -> None:
        write_settings(path, self.as_dict())

    def portable_dict(self, episodes: bool = False) -> dict[str, Any]:
        """`as_dict` without references to other files: the classes of a split file (and its `episodes`), and absolute
        paths of data and weights."""
        values = self.as_dict()
        if isinstance(self.split, str) and self.split != "default":
            values["split"] = split_mapping(as_split(self.split), episodes)
        if not isinstance(self.dataset, str):
            values["dataset"] = with_absolute_root(values["dataset"])
        if self.weights is not None:
            values["weights"] = absolute_path(self.weights)
        return values

    @classmethod
    def load(cls, path: str | Path, **overrides: Any) -> RunConfig:
        """Read a YAML file; `overrides` replace its values."""
        return cls(**{**read_settings(path, "settings"), **overrides})

    @classmethod
    def of_run(cls, folder: str | Path) -> RunConfig:
        """The settings of a finished run."""
        path = Path(folder) / "config.yaml"
        return checked_settings(read_settings(path, "settings"))


def checked_settings(values: Mapping[str, Any]) -> RunConfig:
    """Settings that were checked before, as those of a finished run: its teacher may be gone by now."""
    token = _CHECKED.set(True)
    try:
        return RunConfig(**values)
    finally:
        _CHECKED.reset(token)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise OodmlError(
        f"A setting holds a {type(value).__name__}, which cannot be written to YAML; use names and numbers."
    )
