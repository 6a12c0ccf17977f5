"""Studies that come with the package, an experiment a YAML file: the papers' experiments and small versions of them."""

from oodml.study.presets.read import (
    HEADER,
    Preset,
    load_preset,
    load_preset_or_file,
    matching_presets,
    presets,
    unknown_preset,
)

__all__ = [
    "HEADER",
    "Preset",
    "load_preset",
    "load_preset_or_file",
    "matching_presets",
    "presets",
    "unknown_preset",
]
