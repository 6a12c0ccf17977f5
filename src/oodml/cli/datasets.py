"""`oodml datasets`: what there is, and what is in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oodml._errors import OodmlError
from oodml.cli._app import app, out, print_table

if TYPE_CHECKING:
    from oodml.data import Dataset


@app.command()
def datasets(
    name: str = typer.Argument(None, help="A dataset, or a folder or tar of class folders; default: all are listed."),
    root: Path = typer.Option(None, help="Where its images are: a folder or a .tar."),
    check: bool = typer.Option(False, "--check", help="Decode every image, check the cache; fail on any problem."),
) -> None:
    """List the datasets, or show what is in NAME.

    Counts, classes, superclasses, the default split.
    """
    import warnings

    from oodml.data import dataset_records, load_dataset

    if name is None:
        if root is not None or check:
            raise OodmlError("--root and --check need the name of a dataset; without them all are listed.")
        print_table("Datasets", ("name", "what"), [(r.name, r.summary) for r in dataset_records()])
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are printed below, as lines of the answer
        ds = load_dataset(name, root)
    _show(ds)
    if check:
        _check(ds)


def _show(ds: Dataset) -> None:
    import numpy as np

    sizes = np.bincount(ds.labels, minlength=len(ds.classes))
    rows = [
        ("images", f"{len(ds):,}"),
        ("classes", f"{len(ds.classes):,}, of {_from_to(sizes.min(), sizes.max())} images"),
        ("first classes", ", ".join(ds.classes[:3])),
        ("superclasses", _superclasses(ds)),
        *(_default_split(ds) if len(ds.classes) > 1 else []),
        ("image size", f"{ds.image_size} px"),
        ("source", ds.source.place or "comes with the package"),
        ("fingerprint", ds.fingerprint),
    ]
    print_table(ds.name, ("", ""), rows)
    for note in ds.notes:
        out.print(f"note: {note}", highlight=False, soft_wrap=True)
    for problem in ds.warnings:
        out.print(f"warning: {problem}", highlight=False, soft_wrap=True, style="yellow")


def _default_split(ds: Dataset) -> list[tuple[str, str]]:
    split = ds.default_split
    images = [len(ds.indices_of(side)) for side in (split.train, split.test)]
    return [
        ("default split", f"{len(split.train)} training and {len(split.test)} test classes"),
        ("images in it", f"{images[0]:,} training, {images[1]:,} test"),
    ]


def _from_to(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _superclasses(ds: Dataset) -> str:
    if ds.superclasses is None:
        return "none"
    names = sorted(set(ds.superclasses))
    return f"{len(names)}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def _check(ds: Dataset) -> None:
    """Decode everything and read the cache back, pixel by pixel; the first problem ends it with an error."""
    from oodml.data import load_images
    from oodml.data.cache import cache_folder, read_cache

    images = load_images(ds, strict=True)
    folder = cache_folder(ds, ds.transforms.short_side)
    if read_cache(folder, check_pixels=True) is None:
        raise OodmlError(f"The pixels in {folder} do not match their checksum. Remove that folder; it is built again.")
    if ds.warnings:
        raise OodmlError(f"All {len(images):,} images can be read, but: {' '.join(ds.warnings)}")
    out.print(f"checked: all {len(images):,} images can be read and the cache is intact", highlight=False)
