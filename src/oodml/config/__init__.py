"""The settings of a run: typed, checked before any data is read, YAML in and out."""

from __future__ import annotations

from oodml._split import as_split
from oodml.config.checks import check_backbone, check_schedule
from oodml.config.reading import dataset_identity, explain_settings, read_settings, split_key, write_settings
from oodml.config.run import RunConfig

__all__ = [
    "RunConfig",
    "as_split",
    "check_backbone",
    "check_schedule",
    "dataset_identity",
    "explain_settings",
    "read_settings",
    "split_key",
    "write_settings",
]
