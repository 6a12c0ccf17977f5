"""What the commands about shift share: a data set from a name or a path, and its features."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from oodml._errors import OodmlError
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


def open_dataset(name: str, root: Path | str | None) -> Dataset:
    """A data set by its name, or a folder or tar of class folders by its path."""
    from oodml.data import load_dataset

    return quietly(load_dataset, dataset_settings(name, root))


def dataset_settings(name: str, root: Path | str | None = None) -> dict[str, Any]:
    """What a name with or without its place, or a path alone, says in settings."""
    from oodml.data import dataset_records

    known = [each for record in dataset_records() for each in (record.name, *record.aliases)]
    is_path = name not in known and (os.sep in name or Path(name).exists())
    if is_path:
        return {"name": "folder", "root": str(root or name)}
    if name not in known and root is None:
        raise _neither_path_nor_name(name, known)
    return {"name": name} if root is None else {"name": name, "root": str(root)}


def dataset_setting(name: str) -> str | dict[str, Any]:
    """A data set as settings have it: one known by its name stays a name, a path becomes a folder with its root."""
    spec = dataset_settings(name)
    return spec if "root" in spec else name


def _neither_path_nor_name(name: str, known: list[str]) -> OodmlError:
    """A mistyped path must not be answered as if only names of data sets could be given."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " Check the path."
    return OodmlError(f"There is no folder or tar {name!r}, and no data set of that name ({', '.join(known)}).{hint}")


def open_pictures(name: str, root: Path | None = None) -> Dataset:
    """As `open_dataset`, but a folder of loose pictures will do too: one class, no labels."""
    from oodml.data import list_datasets

    folder = Path(name).expanduser()
    loose = folder.is_dir() and not any(p.is_dir() for p in folder.iterdir() if not p.name.startswith("."))
    if loose and name not in list_datasets():
        return open_target(name)
    ds = open_dataset(name, root)
    for told in ds.notes:
        note(told)
    return ds


def open_target(name: str, root: Path | None = None) -> Dataset:
    """Every picture of a folder or tar, at any depth, as no labels are needed; or a data set by its name."""
    from oodml.data import build_dataset, every_picture, list_datasets

    path = Path(name).expanduser()
    if root is not None or name in list_datasets() or not path.exists():
        return open_dataset(name, root)
    source = every_picture(path)
    return build_dataset("folder", source, ["pictures"] * len(source))


def describe(ds: Dataset, backbone: str, weights: Path | None = None) -> Described:
    """Extract (or read from the cache) the features of a data set, without the pictures that cannot be read."""
    from oodml.models import extract_features

    ds = readable(ds)
    return Described(ds, quietly(extract_features, ds, backbone=backbone, weights=weights), backbone)


def readable(ds: Dataset) -> Dataset:
    """The data set without pictures that cannot be read; a warning names them."""
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
