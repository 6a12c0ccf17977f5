"""The images of an audit: opened, reduced to what the budget allows, checked; and the images of a target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.data import Dataset, load_dataset, load_images, load_unlabelled
from oodml.models import extract_features

FEWEST_CLASSES, FEWEST_IMAGES = 4, 4
FEW_IMAGES = 8  # per class; a large folder is reduced to fewer classes rather than to fewer images per class
FEWEST_TARGET_IMAGES, MOST_TARGET_IMAGES = 3, 600  # KID needs three
ENOUGH_TARGET_IMAGES = 50


@dataclass(frozen=True)
class OpenedFolder:
    """The readable images of a folder.

    settings  the dataset as a run's settings have it
    sample    those of the settings that reduce it; empty: all images are used
    rows      positions of the images whose class has enough of them
    """

    settings: dict[str, Any]
    sample: dict[str, int]
    dataset: Dataset
    rows: np.ndarray
    notes: list[str]

    @property
    def classes(self) -> int:
        return len(np.unique(self.dataset.labels[self.rows]))


def open_folder(
    folder: str | Path, most_images: int, started_with: dict[str, int] | None = None, quiet: bool = False
) -> OpenedFolder:
    """Open a folder of class folders, with at most `most_images` images.

    `started_with` is the sample of an earlier audit that is resumed: its runs are valid for the same images only.
    """
    settings: dict[str, Any] = {"name": "folder", "root": str(Path(folder).expanduser().resolve())}
    whole = load_dataset(settings)
    notes = list(whole.notes)
    _check_classes(len(whole.classes), whole, folder)
    allowed = reduced(most_images, len(whole), len(whole.classes))
    sample = allowed if started_with is None else started_with
    settings |= sample
    dataset = load_dataset(settings) if sample else whole
    if sample or allowed:
        why = f"at most {most_images:,} with this budget" if sample == allowed else "as when this audit was started"
        notes.append(
            f"{len(dataset):,} of {len(whole):,} images were used, of {len(np.unique(dataset.labels)):,} of "
            f"{len(whole.classes):,} classes ({why})."
        )
    before = len(dataset)
    dataset = load_images(dataset, quiet=quiet).dataset
    if len(dataset) < before:
        notes.append(
            f"{before - len(dataset)} of {before} images cannot be read and were left out; `oodml datasets FOLDER "
            "--check` lists them."
        )
    rows = _usable(dataset, notes)
    _check_classes(len(np.unique(dataset.labels[rows])), dataset, folder)
    return OpenedFolder(settings, sample, dataset, rows, notes)


def reduced(most_images: int, images: int, classes: int) -> dict[str, int]:
    """How a folder is reduced to `most_images`, as options of the dataset: fewer images per class, and fewer classes
    where few images per class would be left. Empty: not at all."""
    if images <= most_images:
        return {}
    if most_images // classes >= FEW_IMAGES:
        return {"images_per_class": most_images // classes}
    return {"images_per_class": FEW_IMAGES, "most_classes": max(4, most_images // FEW_IMAGES)}


def _usable(dataset: Dataset, notes: list[str]) -> np.ndarray:
    """Positions of the images whose class has enough of them to measure recall and shift."""
    sizes = np.bincount(dataset.labels, minlength=len(dataset.classes))
    least = FEWEST_IMAGES if (sizes >= FEWEST_IMAGES).sum() >= FEWEST_CLASSES else 2
    if small := int(((sizes > 0) & (sizes < least)).sum()):
        left_out = "1 class" if small == 1 else f"{small} classes"
        notes.append(f"Left out because they have fewer than {least} readable images: {left_out}.")
    return np.flatnonzero(sizes[dataset.labels] >= least)


def _check_classes(count: int, dataset: Dataset, folder: str | Path) -> None:
    if count < FEWEST_CLASSES:
        raise OodmlError(
            f"An audit trains on some classes and tests on others, so it needs at least {FEWEST_CLASSES} classes with "
            f"two readable images each. {folder} has {count} of them in {len(dataset.classes)} class folders. Expected "
            "FOLDER/CLASS/image.jpg: check the folder, or add classes."
        )


def target_features(
    target: Dataset | str | Path, backbone: str, notes: list[str], quiet: bool = False
) -> tuple[Dataset, np.ndarray]:
    """The readable images of a target, at most as many as a forecast needs, and their features."""
    dataset = target if isinstance(target, Dataset) else load_unlabelled(str(target))
    if len(dataset) > MOST_TARGET_IMAGES:
        notes.append(f"{MOST_TARGET_IMAGES} of the target's {len(dataset)} images were used.")
        drawn = np.random.default_rng(0).choice(len(dataset), MOST_TARGET_IMAGES, replace=False)
        dataset = dataset.subset(np.sort(drawn))
    readable = load_images(dataset, quiet=quiet).dataset
    if len(readable) < len(dataset):
        notes.append(f"{len(dataset) - len(readable)} of the target's images cannot be read and were left out.")
    check_enough(readable)
    notes += few_images_note(readable)
    return readable, extract_features(readable, backbone, quiet=quiet)


def few_images_note(dataset: Dataset) -> list[str]:
    """A warning for a target that has few images."""
    if len(dataset) >= ENOUGH_TARGET_IMAGES:
        return []
    return [
        f"The target has {len(dataset)} images, and every distance is measured between at most half as many: shift and "
        f"forecast are rough. Give {ENOUGH_TARGET_IMAGES} images or more."
    ]


def check_enough(dataset: Dataset) -> None:
    """Raise for a set with too few images to measure a distance."""
    if len(dataset) < FEWEST_TARGET_IMAGES:
        raise OodmlError(
            f"Too few images to measure a shift: {dataset.source.place} has {len(dataset)} that can be read. Give at "
            f"least {FEWEST_TARGET_IMAGES}, better {ENOUGH_TARGET_IMAGES} or more."
        )
