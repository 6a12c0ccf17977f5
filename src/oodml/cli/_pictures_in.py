"""What the commands about shift share: a data set from a name or a path, and its features."""

from __future__ import annotations

import os
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
DATASET = typer.Argument(help="Name of a data set, or a folder or tar of class folders.")
MODE = typer.Option("class-means", "--fid-mode", help="Distance over class-means (the papers) or over images.")
TEST_ROOT = typer.Option(None, "--test-root", help="Where the pictures of the other data set are.")
ROOT_OPTION = typer.Option(None, "--root", help="Where the pictures are, if not at the data set's usual place.")
BACKBONE_OPTION = typer.Option(BACKBONE, "--backbone", help="Network that describes the pictures.")
WEIGHTS_OPTION = typer.Option(None, "--weights", help="File with the network's weights, if it has none of its own.")


@dataclass(frozen=True)
class Described:
    """A data set with the features of all its pictures."""

    ds: Dataset
    features: np.ndarray
    backbone: str

    @property
    def labelled(self) -> tuple[Any, Any, list[str]]:
        return self.features, self.ds.labels, self.ds.classes


def open_dataset(name: str, root: Path | None) -> Dataset:
    """A data set by its name, or a folder or tar of class folders by its path."""
    from oodml.data import list_datasets, load_dataset

    if name not in list_datasets() and root is None and (os.sep in name or Path(name).exists()):
        return quietly(load_dataset, "folder", root=Path(name))
    return quietly(load_dataset, name, root=root)


def open_pictures(name: str, root: Path | None = None) -> Dataset:
    """As `open_dataset`, but a folder of loose pictures will do too: one class, no labels."""
    from oodml.data import FileSource, build_dataset, list_datasets

    folder = Path(name).expanduser()
    if name in list_datasets() or not folder.is_dir():
        return open_dataset(name, root)
    loose = sorted(p.name for p in folder.iterdir() if _is_picture(p))
    if not loose or any(p.is_dir() and not p.name.startswith(".") for p in folder.iterdir()):
        return open_dataset(name, root)
    return build_dataset("folder", FileSource(folder, loose), ["pictures"] * len(loose))


def describe(ds: Dataset, backbone: str, weights: Path | None = None) -> Described:
    """Extract (or read from the cache) the features of a data set."""
    from oodml.models import extract_features

    return Described(ds, extract_features(ds, backbone=backbone, weights=weights), backbone)


def features_of(data: Described) -> dict[str, str]:
    """What distances depend on besides the classes: part of a split's provenance."""
    return {"backbone": data.backbone, "fingerprint": data.ds.fingerprint}


def note(text: str) -> None:
    """A remark for the reader, on stderr."""
    console.print(text, highlight=False, soft_wrap=True)


def quietly(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call `function` and show its warnings as plain sentences, without the place in the program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*arguments, **options)
    for each in caught:
        note(f"warning: {each.message}")
    return result


def both(train: int, test: int) -> str:
    """Sizes of the two sides, for a table."""
    return f"{train:,} + {test:,}"


def _is_picture(path: Path) -> bool:
    from oodml.data import PICTURE_EXTENSIONS

    return path.is_file() and path.suffix.lower() in PICTURE_EXTENSIONS
