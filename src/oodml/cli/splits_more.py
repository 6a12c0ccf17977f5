"""More of `oodml splits`: compare backbones, random halves, splits across datasets, official splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from oodml.cli._app import out, print_table
from oodml.cli._inputs import (
    BACKBONE_OPTION,
    DATASET,
    MODE,
    ROOT_OPTION,
    TEST_ROOT,
    WEIGHTS_OPTION,
    describe,
    made_from,
    open_dataset,
    quietly,
)
from oodml.cli._split_files import counted_splits
from oodml.cli.splits import splits


@splits.command()
def compare(
    dataset: str = DATASET,
    first: str = typer.Argument(help="First backbone."),
    second: str = typer.Argument(help="Second backbone."),
    count: int = typer.Option(8, "-n", "--splits", help="How many splits to choose with each."),
    fid_mode: str = MODE,
    root: Path = ROOT_OPTION,
    first_weights: Path = typer.Option(None, help="Weights of the first backbone."),
    second_weights: Path = typer.Option(None, help="Weights of the second backbone."),
) -> None:
    """Do splits depend on the backbone? Build with two.

    Prints how well their splits agree (the papers' check of backbone bias).
    """
    from oodml.shift import SplitDistances, agreement, build_splits

    ds = open_dataset(dataset, root)
    series, spaces = [], []
    for name, weights in ((first, first_weights), (second, second_weights)):
        data = describe(ds, name, weights)
        mode: Any = fid_mode
        built = quietly(
            build_splits,
            *data.labelled[:2], class_names=ds.classes, start=ds.default_split, n_splits=count, fid_mode=mode
        )  # fmt: skip
        series.append(built)
        spaces.append(SplitDistances(*data.labelled))
    found = agreement(series[0], spaces[0], series[1], spaces[1])
    names = [f"{who}, {s.name}" for who, built in ((first, series[0]), (second, series[1])) for s in built]
    rows = [(n, f"{a:.2f}", f"{b:.2f}") for n, a, b in zip(names, found.fids_a, found.fids_b, strict=True)]
    print_table("The same splits in both spaces", ["built with", f"FID, {first}", f"FID, {second}"], rows)
    rows = [
        (a.name, f"{100 * share:.0f} %", f"{100 * chance:.0f} %")
        for a, share, chance in zip(series[0], found.same_side, found.same_side_chance, strict=False)
    ]
    print_table("Classes on the same side in both", ["split", "same side", "by chance"], rows)
    out.print(
        f"Rank correlation of the distances: {found.rank_correlation:.3f} (1: the same order of all splits). "
        f"Largest gap of the scaled curves: {found.curve_gap:.2f} of the range.",
        soft_wrap=True,
    )


@splits.command()
def iid(
    dataset: str = DATASET,
    repeats: int = typer.Option(10, help="How many random halves."),
    fid_mode: str = MODE,
    seed: int = typer.Option(0, min=0, help="Seed of the random halves."),
    root: Path = ROOT_OPTION,
    backbone: str = BACKBONE_OPTION,
    weights: Path = WEIGHTS_OPTION,
) -> None:
    """Measure the distance without shift.

    Random halves of the same classes, next to the default split (ooDML, table 1).
    """
    from oodml.shift import SplitDistances, iid_baseline

    data = describe(open_dataset(dataset, root), backbone, weights)
    features, labels, classes = data.labelled
    halves = iid_baseline(
        features, labels, class_names=classes, repeats=repeats, fid_mode=fid_mode, seed=seed
    )  # fmt: skip
    apart = SplitDistances(*data.labelled).fid(data.ds.default_split, fid_mode)
    rows = [
        ("default split: different classes", f"{apart:.2f}"),
        (f"i.i.d.: same classes, {repeats} random halves", f"{halves.mean:.2f} ± {halves.sd:.2f}"),
    ]
    print_table(f"{data.ds.name}, {backbone}, FID over {fid_mode}", ["train against test", "FID"], rows)


@splits.command()
def across(
    train: str = typer.Argument(help="Dataset to train on: a name or a folder."),
    test: str = typer.Argument(help="Dataset to test on: a name or a folder."),
    output: Path = typer.Option(Path("across.json"), "-o", "--out", help="File for the split."),
    root: Path = ROOT_OPTION,
    test_root: Path = TEST_ROOT,
    fid_mode: str = MODE,
    backbone: str = BACKBONE_OPTION,
    weights: Path = WEIGHTS_OPTION,
) -> None:
    """Make a split from one dataset to another.

    The training classes of one against the test classes of the other (ooDML, supplement C).
    """
    from oodml.shift import SplitDistances, across_datasets, with_validation

    sets = [open_dataset(train, root), open_dataset(test, test_root)]
    names = [ds.name for ds in sets]
    if names[0] == names[1]:  # two folders have one name: use their paths
        names = [ds.source.place or ds.name for ds in sets]
    source, target = (replace(ds.default_split, dataset=name) for ds, name in zip(sets, names, strict=True))
    split = across_datasets(with_validation(source), target, fid_mode=fid_mode)
    split = replace(split, name="-to-".join(Path(name).stem for name in names))
    data = [describe(ds, backbone, weights) for ds in sets]
    distance = SplitDistances(*data[0].labelled, test=data[1].labelled).fid(split)
    replace(split, fid=distance, provenance={**split.provenance, **made_from(data[0])}).save(output)
    print_table(
        "Across datasets",
        ["train", "test", "FID"],
        [
            (
                f"{names[0]}, {len(split.train)} classes",
                f"{names[1]}, {len(split.test)} classes",
                f"{distance:.2f}",
            )
        ],
    )
    out.print(f"Split in {output}", soft_wrap=True)


@splits.command("import")
def import_official(
    file: Path = typer.Argument(help="The authors' *_splits.pkl, or a JSON file made from them."),
    dataset: str = typer.Argument(help="cub200, cars196 or sop."),
    output: Path = typer.Option(Path("official.json"), "-o", "--out", help="File for the series."),
) -> None:
    """Read the official ooDML splits.

    Code in a pickle is not run.
    """
    from oodml.shift import load_official, save_splits

    series = load_official(file, dataset)
    save_splits(output, series)
    rows = [(s.name, len(s.train), len(s.val), len(s.test), "–" if s.fid is None else f"{s.fid:.2f}") for s in series]
    print_table(f"{dataset}, official splits", ["split", "train classes", "of which val", "test classes", "FID"], rows)
    out.print(f"{counted_splits(series)} in {output}", soft_wrap=True)
