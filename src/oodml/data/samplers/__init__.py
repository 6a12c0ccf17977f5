"""Batch samplers. The class of every registered one can be imported from here: `oodml.data.samplers.SPC`."""

from __future__ import annotations

from typing import Any

import numpy as np

from oodml._registry import Registry
from oodml.data.samplers.base import BatchSampler

REGISTRY = Registry(
    "batch sampler",
    "oodml.data.samplers",
    "oodml.batch_samplers",
    context=("labels", "batch_size", "samples_per_class", "seed", "rank", "world_size"),
)
register_batch_sampler = REGISTRY.register
list_batch_samplers = REGISTRY.names
batch_sampler_records = REGISTRY.records
batch_sampler_record = REGISTRY.__getitem__


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
    """Build a finite batch sampler over images with these `labels`; it yields int64 positions in `labels`.

    `batch_size` is that of the whole batch: with `world_size` processes each draws the same batch and yields its own
    share of whole class groups.
    """
    context = {
        "labels": labels,
        "batch_size": batch_size,
        "samples_per_class": samples_per_class,
        "seed": seed,
        "rank": rank,
        "world_size": world_size,
    }
    return REGISTRY.make(name, context=context, **options)


def __getattr__(name: str) -> Any:
    return REGISTRY.class_named(name)


def __dir__() -> list[str]:
    return [*globals(), *REGISTRY.classes()]
