"""`oodml shift TRAIN TARGET`: the distance of new images from the training images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml.cli import _options as option
from oodml.cli._app import app, out, print_table
from oodml.cli._inputs import Described, describe, note, open_images, open_unlabelled, quietly, readable

if TYPE_CHECKING:
    import numpy as np


@app.command()
def shift(
    train: str = typer.Argument(help="Training images: a folder (of class folders, to measure splits) or a dataset."),
    target: str = typer.Argument(help="New images: a folder, with or without class folders."),
    root: Path = option.ROOT,
    target_root: Path = option.TARGET_ROOT,
    count: int = typer.Option(6, "--n-splits", "-n", min=1, help="Number of splits of TRAIN to compare with."),
    draws: int = typer.Option(20, min=20, help="Number of subsamples of every set."),
    cosine: float = typer.Option(0.9, min=-1, max=1, help="Compare images whose features have at least this cosine."),
    likeness: float = typer.Option(
        0.95, min=-1, max=1, help="Correlation of thumbnails from which two images are the same."
    ),
    shown: int = typer.Option(20, min=0, help="Number of shared images to list."),
    backbone: str = option.BACKBONE,
    weights: Path = option.WEIGHTS,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Measure how far new images are from training images.

    Print the distance of TARGET from TRAIN, its place among splits of TRAIN, and the images in both.
    """
    opened = [open_images(train, root), open_unlabelled(target, target_root)]  # both, before anything is computed

    import oodml
    from oodml.auditing.images import check_enough, few_images_note

    sets = [readable(ds, quiet) for ds in opened]
    for each in sets:
        check_enough(each)
    for text in few_images_note(sets[1]):
        note(text)
    source, other = (describe(ds, backbone, weights, device, quiet) for ds in sets)
    rows: list[tuple[Any, ...]] = [
        ("images", f"{len(source.ds):,} and {len(other.ds):,}"),
        ("FID over images", f"{oodml.fid(source.features, other.features):.2f}"),
        ("KID over images", repr(oodml.kid(source.features, other.features))),
    ]
    print_table(f"{train} against {target}, {backbone}", ["measure", "value"], rows)
    _place(source, other, count, draws)
    _print_shared(source, other, cosine, likeness, shown)


def _place(source: Described, other: Described, count: int, draws: int) -> None:
    """Compare the target with splits of the training set, all at one sample size."""
    from oodml.reporting.words import placement_sentence
    from oodml.shift import place_target, reference_splits

    ds = source.ds
    splits: list[tuple[str, np.ndarray, np.ndarray]] = []
    if len(ds.classes) >= 4:
        built = quietly(reference_splits, source.features, ds.labels, ds.classes, count)
        splits = [(split.name, ds.indices_of(split.train), ds.indices_of(split.test)) for split in built]
    else:
        note("The training images have fewer than four classes, so there are no splits to compare with.")
    placed = place_target(source.features, other.features, splits, draws=draws)
    rows = []
    for spread in sorted([*placed.splits, *([placed.target] if placed.target else [])], key=lambda each: each.mean):
        low, high = spread.interval()
        name = "TARGET" if spread is placed.target else spread.name
        rows.append((name, f"{spread.mean:.2f}", f"{low:.2f} to {high:.2f}"))
    title = f"FID over images, {placed.n} per side, {draws} draws without replacement"
    print_table(title, ["train against", "mean", "95 % of draws"], rows)
    out.print(placement_sentence(placed), soft_wrap=True, highlight=False)


def _print_shared(source: Described, other: Described, cosine: float, likeness: float, shown: int) -> None:
    """Name images that both sets contain: a model would be tested on its training images."""
    from oodml.shift import shared_images

    shared = shared_images(
        source.ds.source,
        source.features,
        other.ds.source,
        other.features,
        least_cosine=cosine,
        least_likeness=likeness,
    )
    if not shared:
        out.print("No image was found in both sets, by features and thumbnails.", soft_wrap=True)
        return
    rows = [(source.ds.path(each.train), other.ds.path(each.target), f"{each.likeness:.3f}") for each in shared[:shown]]
    affected = len({each.target for each in shared})
    found = f"{affected} of {len(other.ds)} target images are in the training set too, or nearly."
    out.print(found, soft_wrap=True, highlight=False)
    print_table("Shared images", ["training image", "target image", "likeness"], rows)
    if len(shared) > shown:
        out.print(f"and {len(shared) - shown} more pairs (--shown {len(shared)} lists all)")
