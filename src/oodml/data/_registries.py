"""The two registries of this room: data sets and batch samplers."""

from __future__ import annotations

from oodml._registry import Registry

DATASETS = Registry("data set", "oodml.data.sets", "oodml.datasets", context=("root", "strict"))
BATCH_SAMPLERS = Registry(
    "batch sampler",
    "oodml.data.samplers",
    "oodml.batch_samplers",
    context=("labels", "batch_size", "samples_per_class", "seed", "rank", "world_size"),
)

register_dataset = DATASETS.register
list_datasets = DATASETS.names
dataset_records = DATASETS.records
register_batch_sampler = BATCH_SAMPLERS.register
list_batch_samplers = BATCH_SAMPLERS.names
batch_sampler_records = BATCH_SAMPLERS.records
batch_sampler_record = BATCH_SAMPLERS.__getitem__
