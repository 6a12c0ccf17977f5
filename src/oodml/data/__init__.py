"""Data sets, the decode-once cache, batched augmentation and batch samplers; this room stands alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oodml.data._dataset import Dataset, Transforms, build_dataset
from oodml.data._folders import PICTURE_EXTENSIONS, every_picture
from oodml.data._load import load_dataset, make_batch_sampler
from oodml.data._registries import (
    batch_sampler_record,
    batch_sampler_records,
    dataset_records,
    list_batch_samplers,
    list_datasets,
    register_batch_sampler,
    register_dataset,
)
from oodml.data._sources import ArraySource, FileSource, Source, TarSource
from oodml.data.samplers._base import BatchSampler

if TYPE_CHECKING:
    from oodml.data.images import Images, load_images

__all__ = [
    "PICTURE_EXTENSIONS",
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
    "every_picture",
    "list_batch_samplers",
    "list_datasets",
    "load_dataset",
    "load_images",
    "make_batch_sampler",
    "register_batch_sampler",
    "register_dataset",
]


def __getattr__(name: str) -> Any:
    if name in ("Images", "load_images"):  # they need torch; listing data sets and drawing batches does not
        from oodml.data import images

        return getattr(images, name)
    raise AttributeError(f"module 'oodml.data' has no attribute {name!r}")
