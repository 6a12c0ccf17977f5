"""The pictures of an audit: read, reduced to what the time allows, described by features."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml._files import cache_root
from oodml.data import Dataset, load_dataset, load_images
from oodml.models import extract_features
from oodml.study.audit.sizing import Clock, affordable_views, reduction

FEWEST_CLASSES, FEWEST_PICTURES = 4, 4
FEWEST_TARGET_PICTURES, MOST_TARGET_PICTURES = 3, 600  # KID needs three; they hardly tell a shift, one tells none
ENOUGH_TARGET_PICTURES = 50
STARTING_PICTURES, TIMED_PICTURES = 8, 64  # the first pay for starting the backbone, the others tell its speed


@dataclass(frozen=True)
class Pictures:
    """What the audit works on. `features` are those of the evaluation view of all pictures of `dataset`; `rows` are
    the positions of those whose class has enough pictures."""

    spec: dict[str, Any]
    dataset: Dataset
    backbone: str
    features: np.ndarray
    rows: np.ndarray
    views: int
    seconds_a_view: float

    @property
    def classes(self) -> int:
        return len(np.unique(self.dataset.labels[self.rows]))


@dataclass(frozen=True)
class Opened:
    """The readable pictures of a folder, as many as the time allows, and how a run finds the same ones: `spec`, the
    settings of the data set, of which `sample` are those that reduce it."""

    spec: dict[str, Any]
    sample: dict[str, int]
    dataset: Dataset
    rows: np.ndarray
    notes: list[str]


def open_folder(
    folder: str | Path, clock: Clock, quiet: bool = False, begun_with: dict[str, int] | None = None
) -> Opened:
    """Open a folder of class folders and take as many pictures as the time allows, or the sample that an audit was
    `begun_with`: on others its runs would count for nothing."""
    spec: dict[str, Any] = {"name": "folder", "root": str(Path(folder).expanduser().resolve())}
    dataset = load_dataset(spec)
    notes = list(dataset.notes)
    _check_classes(len(dataset.classes), dataset, folder)
    fitting = reduction(clock.total / 60, len(dataset), len(dataset.classes))
    whole, sample = dataset, fitting if begun_with is None else begun_with
    if sample:
        spec = {**spec, **sample}
        dataset = load_dataset(spec)
    if sample or fitting:
        why = "To fit the time" if sample == fitting else "As this audit was begun, whatever the time now"
        notes.append(
            f"{why}, {len(dataset):,} of {len(whole):,} pictures were used, of "
            f"{len(np.unique(dataset.labels)):,} of {len(whole.classes):,} classes."
        )
    before = len(dataset)
    dataset = load_images(dataset, quiet=quiet).dataset
    if len(dataset) < before:
        notes.append(
            f"{before - len(dataset)} of {before} pictures cannot be read and were left out; `oodml datasets FOLDER "
            "--check` names them."
        )
    rows = _usable(dataset, notes)
    _check_classes(len(np.unique(dataset.labels[rows])), dataset, folder)
    return Opened(spec, sample, dataset, rows, notes)


def describe(opened: Opened, backbone: str, clock: Clock, quiet: bool = False, views: int | None = None) -> Pictures:
    """Compute the features of the evaluation view and of `views` augmented ones (None: as many as the time allows)."""
    began, kept = time.monotonic(), _kept_features()
    features = extract_features(opened.dataset, backbone, quiet=quiet)
    seconds = time.monotonic() - began
    if _kept_features() <= kept:  # read from an earlier audit's files, which tells nothing of what a view costs
        seconds = _seconds_a_view(opened.dataset, backbone)
    views = affordable_views(clock, seconds) if views is None else views
    if views:
        extract_features(opened.dataset, backbone, views=views, quiet=quiet)  # kept on disk, where the runs find them
    return Pictures(opened.spec, opened.dataset, backbone, features, opened.rows, views, seconds)


def _kept_features() -> set[str]:
    """The files of features on disk: one more after a call says that it computed them."""
    return {path.name for path in (cache_root() / "features").glob("*.safetensors")}


def _seconds_a_view(dataset: Dataset, backbone: str) -> float:
    """What a view of all pictures takes to compute here, from a few of them.

    Starting the backbone takes as long for few pictures as for many; the difference of two samples is free of it.
    """
    if len(dataset) <= STARTING_PICTURES + TIMED_PICTURES:
        return _seconds_of(dataset, len(dataset), backbone)
    start = _seconds_of(dataset, STARTING_PICTURES, backbone)
    both = _seconds_of(dataset, STARTING_PICTURES + TIMED_PICTURES, backbone)
    if both <= start:  # something else disturbed the first: rather too much than nothing
        return both / (STARTING_PICTURES + TIMED_PICTURES) * len(dataset)
    return start + (both - start) / TIMED_PICTURES * (len(dataset) - STARTING_PICTURES)


def _seconds_of(dataset: Dataset, count: int, backbone: str) -> float:
    """What the features of so many pictures take, without those on disk."""
    sample = dataset.subset(np.linspace(0, len(dataset) - 1, count).astype(int))
    began = time.monotonic()
    extract_features(sample, backbone, cache=False, quiet=True)
    return time.monotonic() - began


def read_target(dataset: Dataset, backbone: str, notes: list[str], quiet: bool = False) -> tuple[Dataset, np.ndarray]:
    """The target's pictures, at most so many as a forecast needs, and their features."""
    if len(dataset) > MOST_TARGET_PICTURES:
        notes.append(f"{MOST_TARGET_PICTURES} of the target's {len(dataset)} pictures were used.")
        drawn = np.random.default_rng(0).choice(len(dataset), MOST_TARGET_PICTURES, replace=False)
        dataset = dataset.subset(np.sort(drawn))
    readable = load_images(dataset, quiet=quiet).dataset
    if len(readable) < len(dataset):
        notes.append(f"{len(dataset) - len(readable)} of the target's pictures cannot be read and were left out.")
    check_many(readable)
    notes += roughness(readable)
    return readable, extract_features(readable, backbone, quiet=quiet)


def roughness(dataset: Dataset) -> list[str]:
    """What to say of a target that has few pictures; nothing of one that has enough."""
    if len(dataset) >= ENOUGH_TARGET_PICTURES:
        return []
    return [
        f"The target has {len(dataset)} pictures, and all distances are measured between at most half as many: a "
        f"rough measure of shift, and a rough forecast. Better give {ENOUGH_TARGET_PICTURES} or more."
    ]


def check_many(dataset: Dataset) -> None:
    """Refuse a handful of pictures whose distance from others would mean nothing, before anything is written."""
    if len(dataset) < FEWEST_TARGET_PICTURES:
        raise OodmlError(
            f"A shift lies between two sets of pictures, and {dataset.source.place} has {len(dataset)} that can be "
            f"read: give at least {FEWEST_TARGET_PICTURES}, better {ENOUGH_TARGET_PICTURES} or more."
        )


def _usable(dataset: Dataset, notes: list[str]) -> np.ndarray:
    """Positions of the pictures whose class has enough of them to be found again and to be measured."""
    sizes = np.bincount(dataset.labels, minlength=len(dataset.classes))
    least = FEWEST_PICTURES if (sizes >= FEWEST_PICTURES).sum() >= FEWEST_CLASSES else 2
    small = int(((sizes > 0) & (sizes < least)).sum())
    if small:
        left_out = "1 class" if small == 1 else f"{small} classes"
        notes.append(f"Left out for having fewer than {least} readable pictures: {left_out}.")
    return np.flatnonzero(sizes[dataset.labels] >= least)


def _check_classes(count: int, dataset: Dataset, folder: str | Path) -> None:
    if count < FEWEST_CLASSES:
        raise OodmlError(
            f"An audit trains on some classes and tests on others, at least two each: {folder} has {count} with two "
            f"readable pictures or more, of {len(dataset.classes)} class folders. Expected "
            "FOLDER/CLASS/picture.jpg with four classes or more; check the folder, or add classes."
        )
