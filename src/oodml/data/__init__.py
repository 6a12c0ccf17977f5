"""Datasets, the cache of decoded images, batched augmentation and batch samplers; imports no other package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oodml.data.dataset import Dataset, Transforms, build_dataset
from oodml.data.load import (
    dataset_records,
    dataset_setting,
    dataset_spec,
    list_datasets,
    load_dataset,
    load_unlabelled,
    register_dataset,
)
from oodml.data.samplers import (
    BatchSampler,
    batch_sampler_record,
    batch_sampler_records,
    list_batch_samplers,
    make_batch_sampler,
    register_batch_sampler,
)
from oodml.data.sources import IMAGE_EXTENSIONS, ArraySource, FileSource, Source, TarSource

if TYPE_CHECKING:
    from oodml.data.images import Images, load_images, view_one

_NEED_TORCH = ("Images", "load_images", "view_one")  # listing datasets and drawing batches does not

__all__ = [
    "IMAGE_EXTENSIONS",
    "ArraySource",
    "BatchSampler",
    "Dataset",
    "FileSource",
    "Images",
    "Source",
    "TarSource",
    "Transforms",
    "batch_sampler_record",
    "batch_sampler_records",
    "build_dataset",
    "dataset_records",
    "dataset_setting",
    "dataset_spec",
    "list_batch_samplers",
    "list_datasets",
    "load_dataset",
    "load_images",
    "load_unlabelled",
    "make_batch_sampler",
    "register_batch_sampler",
    "register_dataset",
    "view_one",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        from oodml.data import images

        return getattr(images, name)
    raise AttributeError(f"module 'oodml.data' has no attribute {name!r}")
