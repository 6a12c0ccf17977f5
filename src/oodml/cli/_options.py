"""Options that several commands have, and checks of paths.

The checks run before a command imports torch, so that a mistyped path is reported at once.
"""

from __future__ import annotations

from pathlib import Path

import typer

from oodml._errors import OodmlError
from oodml.cli._app import folder_given

DEFAULT_BACKBONE = "tf_efficientnet_lite0"
DATASET = typer.Argument(help="Name of a dataset, or a folder or tar of class folders.")
OTHER_DATASET = typer.Option(None, "--dataset", help="Another dataset: a name, or a folder or tar of class folders.")
ROOT = typer.Option(None, "--root", help="Where the images are, if not at the dataset's default place.")
TARGET_ROOT = typer.Option(None, "--target-root", help="The same for the second dataset.")
BACKBONE = typer.Option(DEFAULT_BACKBONE, "--backbone", help="Network that computes the features: any timm name.")
WEIGHTS = typer.Option(None, "--weights", help="File of weights (.pth, .safetensors) for the backbone.")
FID_MODE = typer.Option("class-means", "--fid-mode", help="Distance over class-means (the papers) or over images.")
N_SPLITS = typer.Option(8, "--n-splits", "-n", min=1, help="Number of splits to choose.")
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
