"""`oodml shift TRAIN TARGET`: how far are new pictures from the ones a model is trained on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml.cli._app import app, out, print_table
from oodml.cli._pictures_in import (
    BACKBONE_OPTION,
    WEIGHTS_OPTION,
    Described,
    describe,
    note,
    open_pictures,
    open_target,
    quietly,
    readable,
)

if TYPE_CHECKING:
    import numpy as np


@app.command()
def shift(
    train: str = typer.Argument(help="Training pictures: a folder (of class folders, to see the scale) or a data set."),
    target: str = typer.Argument(help="Pictures to be used on: a folder, with or without class folders."),
    train_root: Path = typer.Option(None, help="Where the training data set is, if TRAIN is a name."),
    target_root: Path = typer.Option(None, help="Where the target data set is, if TARGET is a name."),
    count: int = typer.Option(6, "-n", "--splits", min=1, help="Splits of the training set to compare with."),
    draws: int = typer.Option(20, min=20, help="Subsamples of every set."),
    # A bound no pair can reach would always answer that no picture is shared.
    cosine: float = typer.Option(
        0.9, min=-1, max=1, help="Pictures whose features are this alike are checked for being the same."
    ),
    likeness: float = typer.Option(
        0.95, min=-1, max=1, help="Correlation of thumbnails from which two pictures are one."
    ),
    shown: int = typer.Option(20, min=0, help="How many shared pictures to list."),
    backbone: str = BACKBONE_OPTION,
    weights: Path = WEIGHTS_OPTION,
) -> None:
    """How far are new pictures from those trained on?

    The distance of TARGET from TRAIN, its place among the shifts inside TRAIN, and the pictures both share.
    """
    import oodml
    from oodml.study.audit.pictures import check_many, roughness

    opened = [open_pictures(train, train_root), open_target(target, target_root)]  # both, before anything is computed
    pictures = [readable(ds) for ds in opened]
    for each in pictures:
        check_many(each)
    for told in roughness(pictures[1]):
        note(told)
    source, other = (describe(ds, backbone, weights) for ds in pictures)
    rows: list[tuple[Any, ...]] = [
        ("images", f"{len(source.ds):,} and {len(other.ds):,}"),
        ("FID over images", f"{oodml.fid(source.features, other.features):.2f}"),
        ("KID over images", repr(oodml.kid(source.features, other.features))),
    ]
    print_table(f"{train} against {target}, {backbone}", ["measure", "value"], rows)
    _place(source, other, count, draws)
    _duplicates(source, other, cosine, likeness, shown)


def _place(source: Described, other: Described, count: int, draws: int) -> None:
    """Where the target falls on the scale of the training set's own splits, all at one sample size."""
    from oodml.shift import place_target, splits_of_pictures

    ds = source.ds
    splits: list[tuple[str, np.ndarray, np.ndarray]] = []
    if len(ds.classes) >= 4:
        built = quietly(splits_of_pictures, source.features, ds.labels, ds.classes, count)
        splits = [(split.name, ds.indices_of(split.train), ds.indices_of(split.test)) for split in built]
    else:
        note("The training pictures have fewer than four classes, so there is no scale of splits to compare with.")
    placed = place_target(source.features, other.features, splits, draws=draws)
    rows = []
    for spread in sorted([*placed.splits, placed.target], key=lambda each: each.mean):
        low, high = spread.interval()
        name = "TARGET" if spread is placed.target else spread.name
        rows.append((name, f"{spread.mean:.2f}", f"{low:.2f} to {high:.2f}"))
    title = f"FID over images, {placed.n} a side, {draws} draws without replacement"
    print_table(title, ["train against", "mean", "95 % of draws"], rows)
    out.print(placed.in_words(), soft_wrap=True, highlight=False)


def _duplicates(source: Described, other: Described, cosine: float, likeness: float, shown: int) -> None:
    """Name pictures that both sets share: a model would be tested on what it was trained on."""
    import numpy as np

    from oodml.shift import similar_pairs, thumbnail_likeness
    from oodml.study.audit.target import thumbnails

    pairs = similar_pairs(source.features, other.features, least_cosine=cosine)
    alike = np.zeros(0)
    if pairs:
        first = thumbnails(source.ds, [i for i, _, _ in pairs])
        second = thumbnails(other.ds, [j for _, j, _ in pairs])
        alike = thumbnail_likeness(first, second)
    same = [(pair, score) for pair, score in zip(pairs, alike, strict=True) if score >= likeness]
    if not same:
        out.print("No picture is in both sets, as far as features and thumbnails tell.", soft_wrap=True)
        return
    rows = [
        (source.ds.path(i), other.ds.path(j), f"{score:.3f}")
        for (i, j, _), score in sorted(same, key=lambda each: -each[1])[:shown]
    ]
    affected = len({j for (_, j, _), _ in same})
    told = f"{affected} of {len(other.ds)} target pictures are in the training set too, or nearly."
    out.print(told, soft_wrap=True, highlight=False)
    print_table("Shared pictures", ["training picture", "target picture", "likeness"], rows)
    if len(same) > shown:
        out.print(f"and {len(same) - shown} more pairs (--shown {len(same)} lists all)")
