"""Data sets and batch samplers by name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._registry import Record
from oodml.data._dataset import Dataset
from oodml.data._registries import BATCH_SAMPLERS, DATASETS
from oodml.data.samplers._base import BatchSampler


def load_dataset(
    name: str | Mapping[str, Any] | Dataset, root: str | Path | None = None, strict: bool = False, **options: Any
) -> Dataset:
    """Load a data set by name, or by a mapping `{"name": "folder", "root": ...}`.

    `root` is where the pictures are (for `cub200` and `cars196` by default `$OODML_DATA/NAME`, else `./data/NAME`).
    An incomplete copy or a class of one picture gives a warning, and an incomplete copy an error with `strict`.
    Nothing is ever downloaded.
    """
    if isinstance(name, Dataset):
        return name
    if isinstance(name, Mapping):
        spec = {"root": root, "strict": strict, **options, **name}
        if "name" not in spec:
            raise OodmlError(f"A data set given as a mapping needs the key 'name', got {dict(name)!r}.")
        return load_dataset(spec.pop("name"), **spec)
    record = DATASETS[name]
    if root is not None and "root" not in inspect.signature(record.factory).parameters and not record.takes_any_keyword:
        raise OodmlError(f"The data set {name!r} comes with the package and takes no root; leave it out.")
    _check_options(record, options)
    ds = DATASETS.make(name, context={"root": root, "strict": strict}, **options)
    if not isinstance(ds, Dataset):
        raise OodmlError(f"The data set {name!r} must be an oodml Dataset, but its factory made {type(ds).__name__}.")
    for problem in ds.warnings:
        warnings.warn(f"{ds.name}: {problem}", stacklevel=2)
    return ds


def _check_options(record: Record, options: Mapping[str, Any]) -> None:
    """Raise for an option a data set does not take; to a user its root is an option like the others."""
    taken = set(inspect.signature(record.factory).parameters)
    for key in options:
        if key not in taken and not record.takes_any_keyword:
            raise unknown_name(f"option of data set {record.name!r}:", key, taken)


def make_batch_sampler(
    name: str,
    labels: np.ndarray,
    batch_size: int = 112,
    samples_per_class: int = 2,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    **options: Any,
) -> BatchSampler:
    """Build a finite batch sampler over pictures with these `labels`; it yields int64 positions in `labels`.

    `batch_size` is that of the whole batch: with `world_size` processes every one draws the same batch and is given
    its own share of whole class groups.
    """
    context = {
        "labels": labels,
        "batch_size": batch_size,
        "samples_per_class": samples_per_class,
        "seed": seed,
        "rank": rank,
        "world_size": world_size,
    }
    return BATCH_SAMPLERS.make(name, context=context, **options)
