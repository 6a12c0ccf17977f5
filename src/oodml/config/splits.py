"""A split as settings name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodml._errors import OodmlError

if TYPE_CHECKING:
    from oodml.shift import Split


def as_split(split: Any) -> Split:
    """The Split behind a path (`FILE` or `FILE#NAME`), a mapping with train and test class names, or a Split."""
    from oodml.shift import Split

    if isinstance(split, Split):
        return split
    if isinstance(split, Mapping):
        known = {key: value for key, value in split.items() if key != "format" and value is not None}
        try:
            episodes = {int(shots): each for shots, each in known.pop("episodes", {}).items()}  # text in JSON
            return Split(**known, episodes=episodes)
        except (TypeError, ValueError, AttributeError) as error:
            raise OodmlError(
                f"split: a mapping needs 'train' and 'test', and may have the other keys of a split ({error})."
            ) from None
    if isinstance(split, str | Path):
        return Split.load(split)
    raise OodmlError(
        f"split: give 'default', a path to a split file, a mapping or a Split, got {type(split).__name__}."
    )


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
