"""Data sets of the literature: where to look, what to expect, and what to say when something is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oodml._errors import OodmlError
from oodml.data._dataset import Dataset


@dataclass(frozen=True)
class Published:
    """Facts of a public data set."""

    name: str
    title: str
    address: str
    layouts: tuple[str, ...]
    classes: int
    images: int
    train_images: int
    test_images: int


def default_root(name: str) -> Path:
    """`$OODML_DATA/NAME`, else `./data/NAME`."""
    return Path(os.environ.get("OODML_DATA") or "data").expanduser() / name


def find(facts: Published, root: str | Path | None) -> Path:
    """The first place that holds the set: a tar inside the root, the root itself, or a tar beside it."""
    start = default_root(facts.name) if root is None else Path(root).expanduser()
    looked = [start / f"{facts.name}.tar", start, start.with_name(f"{start.name}.tar")]
    for place in looked:
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            return place
    places = ", ".join(str(place.absolute()) for place in looked)
    raise OodmlError(
        f"The data set {facts.name!r} ({facts.title}) was not found. Looked at {places}. "
        f"Nothing is downloaded for you: get it from {facts.address} and arrange it as "
        f"{'; or as '.join(facts.layouts)}; then pass root=, or set OODML_DATA to the folder that holds {facts.name}/."
    )


def verified(ds: Dataset, facts: Published, strict: bool, missing: Sequence[str] = ()) -> Dataset:
    """Compare with the published counts; a difference is a warning, or an error with `strict`."""
    train = (ds.labels < len(ds.classes) // 2).sum()  # the default split of every published dataset
    expected = (facts.classes, facts.images, facts.train_images, facts.test_images)
    found = (len(ds.classes), len(ds), int(train), int(len(ds) - train))
    if found == expected:
        return ds
    names = ("classes", "images", "images in the default training classes", "images in the default test classes")
    differences = [
        f"{have:,} {what} instead of {want:,} ({have - want:+,})"
        for what, want, have in zip(names, expected, found, strict=True)
        if have != want
    ]
    which = f" Missing, for instance: {', '.join(missing[:3])}." if missing else ""
    note = (
        f"This copy of {facts.title} is not the published one: {'; '.join(differences)}.{which} "
        f"Scores will differ slightly from the literature; the complete set is at {facts.address}"
    )
    if strict:
        raise OodmlError(note)
    return replace(ds, warnings=(*ds.warnings, note))
