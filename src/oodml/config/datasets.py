"""A data set as settings name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def dataset_identity(spec: str | dict[str, Any]) -> dict[str, Any]:
    """A data set's settings without the place of a known one: where it lies is not what it is.

    A folder of pictures is what lies there, however its path is written.
    """
    settings = {"name": spec} if isinstance(spec, str) else with_absolute_root(spec)
    return {key: value for key, value in settings.items() if key != "root" or settings["name"] == "folder"}


def with_absolute_root(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A data set's settings that mean the same from any working directory."""
    root = spec.get("root")
    return {**spec, "root": str(Path(root).expanduser().resolve())} if root else dict(spec)
