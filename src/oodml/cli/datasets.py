"""`oodml datasets`, `features` and `cache`: datasets, what is computed from their images, and what is kept of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oodml._errors import OodmlError
from oodml.cli import _options as option
from oodml.cli._app import app, out, print_table
from oodml.cli._inputs import open_dataset, quietly, readable

if TYPE_CHECKING:
    from oodml.data import Dataset

DAY = 24 * 3600


@app.command()
def datasets(
    name: str = typer.Argument(None, help="A dataset, or a folder or tar of class folders; default: list all."),
    root: Path = option.ROOT,
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
        warnings.simplefilter("ignore")  # they are printed below
        ds = load_dataset(name, root)
    _print_dataset(ds)
    if check:
        _check(ds)


def _print_dataset(ds: Dataset) -> None:
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


@app.command()
def features(
    dataset: str = option.DATASET,
    root: Path = option.ROOT,
    backbone: str = option.BACKBONE,
    weights: Path = option.WEIGHTS,
    views: int = typer.Option(0, min=0, help="Number of augmented views to add to the evaluation view."),
    per_class: int = typer.Option(None, "--images-per-class", min=1, help="At most so many images per class."),
    size: int = typer.Option(None, help="Side of the images in pixels; default: the dataset's, at least 64."),
    seed: int = typer.Option(0, min=0, help="Seed of the augmented views and of --images-per-class."),
    output: Path = typer.Option(None, "--out", "-o", help="Write embeddings, labels and classes to this .npz file."),
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Compute pooled features of every image of DATASET.

    They are cached: a second call is instant.
    """
    if output and output.suffix not in (".npz", ""):
        raise OodmlError(f"--out {output}: features are written as .npz.")
    ds = open_dataset(dataset, root)

    import numpy as np

    import oodml
    from oodml._files import atomic_file

    ds = readable(ds, quiet)
    if per_class:
        ds = ds.sample(per_class, seed=seed)
    found = quietly(
        oodml.extract_features,
        ds,
        backbone,
        weights=weights,
        views=views,
        size=size,
        device=device,
        seed=seed,
        quiet=quiet,
    )
    shape = " × ".join(f"{n:,}" for n in found.shape)
    out.print(f"{ds.name}: {shape} features of {backbone} ({len(ds.classes)} classes)", highlight=False)
    if output:
        target = output.with_suffix(".npz")
        with atomic_file(target) as temporary, temporary.open("wb") as file:
            np.savez(file, embeddings=found, labels=ds.labels, classes=np.array(ds.classes))
        out.print(f"written to {target}", highlight=False, soft_wrap=True)


@app.command()
def cache(
    clear: bool = typer.Option(False, "--clear", help="Remove what is listed; it is computed again when needed."),
    unused_for: float = typer.Option(0, help="Only what was not used for this number of days.", min=0),
) -> None:
    """Show or remove what is cached between commands.

    Decoded images and features: how large they are and when they were last used.
    """
    from oodml._files import CACHE_KINDS, cache_entries, cache_root, remove_cached

    now = time.time()
    entries = [entry for entry in cache_entries() if now - entry.used >= unused_for * DAY]
    rows = [[e.path.name, _size(e.size), _ago(now - e.used), e.place] for e in entries if e.kind == "images"]
    for kind in CACHE_KINDS[1:]:  # many small entries: one line per kind
        if some := [entry for entry in entries if entry.kind == kind]:
            last = _ago(now - max(entry.used for entry in some))
            rows.append([f"{kind} ({len(some)})", _size(sum(entry.size for entry in some)), last, ""])
    total = _size(sum(entry.size for entry in entries))
    if rows:
        print_table(str(cache_root()), ["what", "size", "last used", "made from"], rows)
    if clear:
        remove_cached(entries)
    out.print(f"{total} {'removed' if clear else 'in all'}", highlight=False)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _ago(seconds: float) -> str:
    return "today" if seconds < DAY else f"{seconds / DAY:.0f} days ago"
