"""Open a dataset for a command, compute its features, and print warnings as sentences."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oodml._progress import console

if TYPE_CHECKING:
    import numpy as np

    from oodml.data import Dataset

T = TypeVar("T")


@dataclass(frozen=True)
class Described:
    """A dataset with the features of all its images."""

    ds: Dataset
    features: np.ndarray
    backbone: str

    @property
    def labelled(self) -> tuple[Any, Any, list[str]]:
        return self.features, self.ds.labels, self.ds.classes

    @property
    def origin(self) -> dict[str, str]:
        """What distances depend on besides the classes: part of a split's provenance."""
        return {"backbone": self.backbone, "fingerprint": self.ds.fingerprint}


def open_dataset(name: str, root: Path | str | None = None) -> Dataset:
    """`load_dataset`, with its warnings printed."""
    from oodml.data import load_dataset

    return quietly(load_dataset, name, root)


def open_unlabelled(name: str, root: Path | None = None) -> Dataset:
    """`load_unlabelled`, with its warnings printed."""
    from oodml.data import load_unlabelled

    return quietly(load_unlabelled, name, root)


def open_images(name: str, root: Path | None = None) -> Dataset:
    """A dataset with its notes printed; a folder of images without class folders is one class."""
    from oodml.data import list_datasets

    folder = Path(name).expanduser()
    loose = folder.is_dir() and not any(p.is_dir() for p in folder.iterdir() if not p.name.startswith("."))
    if loose and name not in list_datasets():
        return open_unlabelled(name)
    ds = open_dataset(name, root)
    for each in ds.notes:
        note(each)
    return ds


def describe(
    ds: Dataset, backbone: str, weights: Path | None = None, device: str = "auto", quiet: bool = False
) -> Described:
    """Compute (or read from the cache) the features of a dataset, without the images that cannot be read."""
    from oodml.models import extract_features

    ds = readable(ds, quiet)
    found = quietly(extract_features, ds, backbone=backbone, weights=weights, device=device, quiet=quiet)
    return Described(ds, found, backbone)


def readable(ds: Dataset, quiet: bool = False) -> Dataset:
    """The dataset without images that cannot be read; a warning names them."""
    from oodml.data import load_images

    return quietly(load_images, ds, quiet=quiet).dataset


def note(text: str) -> None:
    """Print a remark on stderr."""
    console.print(text, highlight=False, soft_wrap=True)


def quietly(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call `function` and print its warnings as plain sentences, without the line of code that raised them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _as_sentence  # restored by catch_warnings
        return function(*arguments, **options)


def _as_sentence(message: Warning | str, *_: Any, **__: Any) -> None:
    note(f"warning: {message}")
