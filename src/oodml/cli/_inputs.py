"""What commands share that take a dataset: options, opening it, its features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from oodml._progress import console

if TYPE_CHECKING:
    import numpy as np

    from oodml.data import Dataset

T = TypeVar("T")
BACKBONE = "tf_efficientnet_lite0"
DATASET = typer.Argument(help="Name of a dataset, or a folder or tar of class folders.")
MODE = typer.Option("class-means", "--fid-mode", help="Distance over class-means (the papers) or over images.")
TEST_ROOT = typer.Option(None, "--test-root", help="Where the images of the other dataset are.")
ROOT_OPTION = typer.Option(None, "--root", help="Where the images are, if not at the dataset's default place.")
BACKBONE_OPTION = typer.Option(BACKBONE, "--backbone", help="Network that describes the images.")
WEIGHTS_OPTION = typer.Option(None, "--weights", help="File with the network's weights, if it has none of its own.")


@dataclass(frozen=True)
class Described:
    """A dataset with the features of all its images."""

    ds: Dataset
    features: np.ndarray
    backbone: str

    @property
    def labelled(self) -> tuple[Any, Any, list[str]]:
        return self.features, self.ds.labels, self.ds.classes


def open_dataset(name: str, root: Path | str | None) -> Dataset:
    """A dataset by its name, or a folder or tar of class folders by its path; warnings are printed."""
    from oodml.data import load_dataset

    return quietly(load_dataset, name, root)


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


def open_unlabelled(name: str, root: Path | None = None) -> Dataset:
    """Every image of a folder or tar, at any depth; or a dataset by its name."""
    from oodml.data import load_unlabelled

    return quietly(load_unlabelled, name, root)


def describe(ds: Dataset, backbone: str, weights: Path | None = None) -> Described:
    """Extract (or read from the cache) the features of a dataset, without the images that cannot be read."""
    from oodml.models import extract_features

    ds = readable(ds)
    return Described(ds, quietly(extract_features, ds, backbone=backbone, weights=weights), backbone)


def readable(ds: Dataset) -> Dataset:
    """The dataset without images that cannot be read; a warning names them."""
    from oodml.data import load_images

    return quietly(load_images, ds).dataset


def made_from(data: Described) -> dict[str, str]:
    """A split's provenance: its features, and where a folder was, so that later commands find it."""
    place = data.ds.source.place if data.ds.name == "folder" else ""
    return {**features_of(data), **({"root": place} if place else {})}


def features_of(data: Described) -> dict[str, str]:
    """What distances depend on besides the classes: part of a split's provenance."""
    return {"backbone": data.backbone, "fingerprint": data.ds.fingerprint}


def note(text: str) -> None:
    """A remark for the reader, on stderr."""
    console.print(text, highlight=False, soft_wrap=True)


def quietly(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call `function` and show its warnings, as they come, as plain sentences without the place in the program."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _as_sentence  # put back by catch_warnings
        return function(*arguments, **options)


def _as_sentence(message: Warning | str, *_: Any, **__: Any) -> None:
    note(f"warning: {message}")


def both(train: int, test: int) -> str:
    """Sizes of the two sides, for a table."""
    return f"{train:,} + {test:,}"
