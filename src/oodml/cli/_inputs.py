"""What the commands share: their options, checks of paths, and opening a dataset with its features.

The checks run before a command imports torch, so that a mistyped path is reported at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from oodml._errors import OodmlError
from oodml._progress import console
from oodml.cli._app import folder_given

if TYPE_CHECKING:
    import numpy as np

    from oodml.data import Dataset

T = TypeVar("T")
BACKBONE = "tf_efficientnet_lite0"
DATASET = typer.Argument(help="Name of a dataset, or a folder or tar of class folders.")
OTHER_DATASET = typer.Option(None, "--dataset", help="Another dataset: a name, or a folder or tar of class folders.")
ROOT_OPTION = typer.Option(None, "--root", help="Where the images are, if not at the dataset's default place.")
TARGET_ROOT = typer.Option(None, "--target-root", help="The same for the second dataset.")
BACKBONE_OPTION = typer.Option(BACKBONE, "--backbone", help="Network that computes the features: any timm name.")
WEIGHTS_OPTION = typer.Option(None, "--weights", help="File of weights (.pth, .safetensors) for the backbone.")
MODE = typer.Option("class-means", "--fid-mode", help="Distance over class-means (the papers) or over images.")
COUNT = typer.Option(8, "--n-splits", "-n", min=1, help="Number of splits to choose.")
DEVICE = typer.Option("auto", "--device", help="auto, cpu or cuda.")
QUIET = typer.Option(False, "--quiet", help="No progress bars.")
JSON = typer.Option(False, "--json", help="Print JSON (fractions) instead of a table (per cent).")


def study_given(place: str | None) -> str | None:
    """For the folder or URL of a study: report a path that does not exist."""
    folder_given(place)
    if place is not None and "://" not in str(place) and not Path(place).exists():
        raise OodmlError(f"There is no folder {place}: give the folder of a study. `oodml study run` makes one.")
    return place


def run_given(run: Path) -> Path:
    """For the folder of a finished run: report a path that does not exist."""
    if not run.is_dir():
        raise OodmlError(f"There is no folder {run}: give the folder of a finished run.")
    return run


def file_given(file: Path | None) -> Path | None:
    """For a file that a command reads: report a path that does not exist."""
    if file is not None and not file.is_file():
        raise OodmlError(f"There is no file {file}. Check the path.")
    return file


def names_given(text: str) -> list[str] | None:
    """The names of an option that takes several, separated by commas; None without one."""
    return [name.strip() for name in text.split(",")] if text else None


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
