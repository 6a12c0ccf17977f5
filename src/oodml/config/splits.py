"""A split as settings name it."""

from __future__ import annotations

from typing import Any

from oodml._split import Split, as_split


def split_mapping(split: Split, episodes: bool = False) -> dict[str, Any]:
    """A split as plain settings that `as_split` reads: its classes, and its `episodes` if asked for."""
    dropped = ("provenance",) if episodes and split.episodes else ("provenance", "episodes")
    return {key: value for key, value in split.to_json().items() if key not in dropped}


def split_key(split: Any) -> Any:
    """What identifies a split: its classes, not the file they stand in."""
    if split == "default":
        return split
    found = as_split(split)
    sides = {side: sorted(getattr(found, side)) for side in ("train", "val", "test")}
    return {**sides, "test_dataset": found.test_dataset}
