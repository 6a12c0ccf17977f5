"""`oodml splits`: build, import, show, verify and compare splits of rising shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml._errors import OodmlError
from oodml.cli import _options as option
from oodml.cli._app import app, folder_given, out, print_table
from oodml.cli._inputs import Described, describe, note, open_dataset, quietly

if TYPE_CHECKING:
    from oodml.data import Dataset
    from oodml.shift import Split, SplitDistances, Splits

splits = typer.Typer(help="Train-test splits of rising shift: build, show, verify.", no_args_is_help=True)
app.add_typer(splits, name="splits")

FILE = typer.Argument(help="Split file; FILE#NAME takes one split of a series.")
ITS_DATASET = typer.Option(None, "--dataset", help="A name or a folder; default: the dataset that the splits name.")
ITS_BACKBONE = typer.Option(None, "--backbone", help="Default: the one the splits were built with.")


@splits.command()
def build(
    dataset: str = option.DATASET,
    output: Path = typer.Option(Path("splits.json"), "--out", "-o", help="File for the series."),
    count: int = option.N_SPLITS,
    start: str = typer.Option("default", help="default (that of the dataset), half, random, or a split file."),
    reverse: bool = typer.Option(False, help="Also build splits easier than the start."),
    removal: bool = typer.Option(True, help="Drop the classes nearest to the other side after swapping."),
    keep: float = typer.Option(0.5, help="Share of the images that must remain."),
    swaps: int = typer.Option(None, "--swaps-per-step", help="Classes exchanged per step and side."),
    fid_mode: str = option.FID_MODE,
    seed: int = typer.Option(0, min=0, help="Seed of the validation classes and of a random start."),
    root: Path = option.ROOT,
    backbone: str = option.BACKBONE,
    weights: Path = option.WEIGHTS,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Build splits whose shift rises evenly.

    Classes are swapped between the sides and then removed, and splits chosen at even distances.
    """
    ds = open_dataset(dataset, root)

    from oodml.shift import build_splits, save_splits

    data = describe(ds, backbone, weights, device, quiet)
    series = quietly(
        build_splits,
        *data.labelled[:2],
        class_names=ds.classes,
        start=ds.default_split if start == "default" else start,
        swaps_per_step=swaps,
        reverse=reverse,
        removal=removal,
        keep=keep,
        n_splits=count,
        fid_mode=fid_mode,
        seed=seed,
        dataset=ds.name,
        provenance=_made_from(data),
    )
    save_splits(output, series)
    rows = [
        (s.name, p["stage"], p["step"], _both(*p["classes"]), _both(*p["images"]), f"{s.fid:.2f}")
        for s, p in ((s, s.provenance) for s in series)
    ]
    columns = ["split", "stage", "step", "classes", "images", "FID"]
    print_table(f"{ds.name}, {backbone}, FID over {fid_mode}", columns, rows)
    out.print(f"{_counted(series)} in {output}", soft_wrap=True)


@splits.command("import")
def import_official(
    file: Path = typer.Argument(help="The authors' *_splits.pkl, or a JSON file made from them."),
    dataset: str = typer.Argument(help="cub200, cars196 or sop."),
    output: Path = typer.Option(Path("official.json"), "--out", "-o", help="File for the series."),
) -> None:
    """Read the official ooDML splits.

    Code in a pickle is not run.
    """
    from oodml.shift import load_official, save_splits

    series = load_official(file, dataset)
    save_splits(output, series)
    rows = [(s.name, len(s.train), len(s.val), len(s.test), "–" if s.fid is None else f"{s.fid:.2f}") for s in series]
    print_table(f"{dataset}, official splits", ["split", "train classes", "of which val", "test classes", "FID"], rows)
    out.print(f"{_counted(series)} in {output}", soft_wrap=True)


@splits.command()
def across(
    train: str = typer.Argument(help="Dataset to train on: a name or a folder."),
    target: str = typer.Argument(help="Dataset to test on: a name or a folder."),
    output: Path = typer.Option(Path("across.json"), "--out", "-o", help="File for the split."),
    root: Path = option.ROOT,
    target_root: Path = option.TARGET_ROOT,
    fid_mode: str = option.FID_MODE,
    backbone: str = option.BACKBONE,
    weights: Path = option.WEIGHTS,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Make a split from one dataset to another.

    The training classes of one against the test classes of the other (ooDML, supplement C).
    """
    sets = [open_dataset(train, root), open_dataset(target, target_root)]

    from oodml.shift import SplitDistances, across_datasets, with_validation

    names = [ds.name for ds in sets]
    if names[0] == names[1]:  # two folders have one name: use their paths
        names = [ds.source.place or ds.name for ds in sets]
    source, other = (replace(ds.default_split, dataset=name) for ds, name in zip(sets, names, strict=True))
    split = across_datasets(with_validation(source), other, fid_mode=fid_mode)
    split = replace(split, name="-to-".join(Path(name).stem for name in names))
    data = [describe(ds, backbone, weights, device, quiet) for ds in sets]
    distance = SplitDistances(*data[0].labelled, test=data[1].labelled).fid(split)
    replace(split, fid=distance, provenance={**split.provenance, **_made_from(data[0])}).save(output)
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


@splits.command()
def episodes(
    file: str = FILE,
    output: Path = typer.Option(None, "--out", "-o", help="Default: the same file."),
    shots: list[int] = typer.Option([2, 5, 10], help="Support images per class; may be repeated."),
    count: int = typer.Option(10, "--episodes", help="Number of episodes per number of shots."),
    seed: int = typer.Option(0, min=0, help="Seed of the draw."),
    official: Path = typer.Option(
        None, callback=option.file_given, help="Add the authors' episodes of this file whose images exist."
    ),
    root: Path = option.ROOT,
    dataset: str = ITS_DATASET,
) -> None:
    """Add few-shot episodes to every split of a file.

    N support images per test class; the other images are queries.
    """
    from oodml.shift import (
        load_official_episodes,
        load_splits,
        make_episodes,
        resolve_episodes,
        save_splits,
        split_address,
    )

    series = load_splits(file)
    ds = _open_for(series, dataset or series[0].test_dataset, root)
    for i, split in enumerate(series):
        if official is None:
            for each in shots:
                split = make_episodes(split, ds, shots=each, episodes=count, seed=seed)
        else:
            published = load_official_episodes(official, ds.name).get(str(split.provenance.get("id")), {})
            taken = resolve_episodes(split, ds, published)
            out.print(
                f"{split.name}: {taken.found} of {taken.asked} file names found, "
                f"{taken.complete} of {taken.offered} episodes added",
                soft_wrap=True,
            )
            split = taken.split
        series[i] = split
    if official is not None and not any(split.episodes for split in series):
        raise OodmlError(
            "No official episode is complete in this copy of the data: leave --official out to make your own."
        )
    path, chosen = split_address(file)
    if chosen and output is None:
        raise OodmlError("Episodes for one split of a series need -o FILE, so that the series is not overwritten.")
    target = output or path
    save_splits(target, series) if len(series) > 1 or series.progression else series[0].save(target)
    out.print(f"Episodes in {target}", soft_wrap=True)


@splits.command()
def show(
    file: str = FILE,
    folder: Path = typer.Option(
        None, "--out", "-o", help="Folder of the figures; default: next to the file.", callback=folder_given
    ),
    projection: str = typer.Option("auto", help="Map by umap, tsne or pca; auto: umap if installed, else tsne."),
    dataset: str = ITS_DATASET,
    root: Path = option.ROOT,
    target_root: Path = option.TARGET_ROOT,
    backbone: str = ITS_BACKBONE,
    weights: Path = option.WEIGHTS,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Print sizes and distances of splits, and draw them.

    Classes, images, FID and KID; figures of the progression and of a map of easy, medium and hard splits.
    """
    from oodml.shift import load_splits, split_address

    series = load_splits(file)

    from oodml.reporting.split_figures import check_projection, draw_map, draw_progression

    check_projection(projection)  # before anything is computed or drawn
    encode = partial(describe, weights=weights, device=device, quiet=quiet)
    data, distances = _distances(series, dataset, root, target_root, backbone, encode)
    rows, fids = [], {}
    for split in series:
        found = distances.measure(split)
        fids[split.name] = found.fid
        kid = f"{found.kid:.4f} ± {found.kid.standard_error:.4f}" if found.kid is not None else "–"
        sizes = _both(len(split.train), len(split.test)), _both(found.train_images, found.test_images)
        rows.append((split.name, *sizes, f"{found.fid:.2f}", kid))
    columns = ["split", "classes", "images", "FID", "KID"]
    print_table(f"{data.ds.name}, {data.backbone}, over {series[0].fid_mode}", columns, rows)
    folder = folder or split_address(file)[0].parent
    if series.progression:
        path = folder / "progression.png"
        draw_progression(path, _numbered(series), f"{data.ds.name}: shift by construction step")
        out.print(f"Progression: {path}", soft_wrap=True)
    if series[0].test_dataset is None:
        panels = [
            (f"{level}: {s.name}, FID {fids[s.name]:.1f}", data.ds.indices_of(s.train), data.ds.indices_of(s.test))
            for level, s in _easy_medium_hard(series, fids)
        ]
        path = folder / "map.png"
        used = draw_map(path, data.features, panels, method=projection)
        out.print(f"Map ({used}): {path}", soft_wrap=True)


@splits.command()
def verify(
    file: str = FILE,
    dataset: str = ITS_DATASET,
    root: Path = option.ROOT,
    target_root: Path = option.TARGET_ROOT,
    backbone: str = ITS_BACKBONE,
    weights: Path = option.WEIGHTS,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
    tolerance: float = typer.Option(1e-3, min=0, help="Largest relative difference of the distances."),
) -> None:
    """Check a split file against its dataset.

    Compute the distances again; fail if one differs.
    """
    from oodml.shift import episode_indices, load_splits

    series = load_splits(file)
    encode = partial(describe, weights=weights, device=device, quiet=quiet)
    data, distances = _distances(series, dataset, root, target_root, backbone, encode)
    rows, wrong = [], 0
    for split in series:
        now = distances.fid(split)
        for shots, listed in split.episodes.items():
            for number in range(len(listed)):
                episode_indices(split, data.ds, shots, number)
        comparable = all(split.provenance.get(key) == value for key, value in data.origin.items())
        verdict = _verdict(split.fid, now, tolerance) if comparable else "other features"
        wrong += verdict == "DIFFERS"
        stated = "–" if split.fid is None else f"{split.fid:.3f}"
        episodes = ", ".join(f"{len(e)}×{shots}" for shots, e in split.episodes.items()) or "–"
        rows.append((split.name, stated, f"{now:.3f}", verdict, episodes))
    print_table(f"{file} against {data.ds.name}", ["split", "FID stated", "FID now", "verdict", "episodes"], rows)
    if wrong:
        raise OodmlError(
            f"{wrong} of {len(series)} distances differ from the file by more than {tolerance:g} (relative)."
        )
    out.print("Classes, validation classes and episodes match the dataset.")


@splits.command()
def compare(
    dataset: str = option.DATASET,
    first: str = typer.Argument(help="First backbone; NAME=FILE gives it weights."),
    second: str = typer.Argument(help="Second backbone, in the same form."),
    count: int = option.N_SPLITS,
    fid_mode: str = option.FID_MODE,
    root: Path = option.ROOT,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Build splits with two backbones and compare them.

    Print how well the splits agree (the papers' check of backbone bias).
    """
    ds = open_dataset(dataset, root)

    from oodml.shift import SplitDistances, agreement, build_splits

    series, spaces, backbones = [], [], []
    for each in (first, second):
        name, _, file = each.partition("=")
        data = describe(ds, name, option.file_given(Path(file)) if file else None, device, quiet)
        backbones.append(name)
        built = quietly(
            build_splits,
            *data.labelled[:2],
            class_names=ds.classes,
            start=ds.default_split,
            n_splits=count,
            fid_mode=fid_mode,
        )
        series.append(built)
        spaces.append(SplitDistances(*data.labelled))
    found = agreement(series[0], spaces[0], series[1], spaces[1])
    names = [f"{who}, {s.name}" for who, built in zip(backbones, series, strict=True) for s in built]
    rows = [(n, f"{a:.2f}", f"{b:.2f}") for n, a, b in zip(names, found.fids_a, found.fids_b, strict=True)]
    print_table("The same splits in both spaces", ["built with", *(f"FID, {name}" for name in backbones)], rows)
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
    dataset: str = option.DATASET,
    repeats: int = typer.Option(10, help="Number of random halves."),
    fid_mode: str = option.FID_MODE,
    seed: int = typer.Option(0, min=0, help="Seed of the random halves."),
    root: Path = option.ROOT,
    backbone: str = option.BACKBONE,
    weights: Path = option.WEIGHTS,
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
) -> None:
    """Measure the distance without shift.

    Random halves of the same classes, next to the default split (ooDML, table 1).
    """
    ds = open_dataset(dataset, root)

    from oodml.shift import SplitDistances, iid_baseline

    data = describe(ds, backbone, weights, device, quiet)
    features, labels, classes = data.labelled
    halves = iid_baseline(features, labels, class_names=classes, repeats=repeats, fid_mode=fid_mode, seed=seed)
    apart = SplitDistances(*data.labelled).fid(data.ds.default_split, fid_mode)
    rows = [
        ("default split: different classes", f"{apart:.2f}"),
        (f"i.i.d.: same classes, {repeats} random halves", f"{halves.mean:.2f} ± {halves.sd:.2f}"),
    ]
    print_table(f"{data.ds.name}, {backbone}, FID over {fid_mode}", ["train against test", "FID"], rows)


def _counted(series: Splits) -> str:
    return f"{len(series)} split{'s' * (len(series) != 1)}"


def _distances(
    series: Splits,
    dataset: str | None,
    root: Path | None,
    target_root: Path | None,
    backbone: str | None,
    encode: Callable[[Dataset, str], Described],
) -> tuple[Described, SplitDistances]:
    """The dataset that the splits name, with features of the network that they were built with, and its distances."""
    from oodml.shift import SplitDistances

    ds, made = _open_for(series, dataset, root), series[0].provenance
    _check_classes(series, ds)
    built_with = made.get("backbone") if "fingerprint" in made else None
    data = encode(ds, backbone or built_with or option.DEFAULT_BACKBONE)
    for split in series:
        # Splits are made from the readable images, so those are compared.
        if split.provenance.get("fingerprint", data.ds.fingerprint) != data.ds.fingerprint:
            note(f"{split.name} was made from another copy of {ds.name}: distances may differ.")
    other = series[0].test_dataset
    test = encode(open_dataset(other, target_root), data.backbone).labelled if other else None
    return data, SplitDistances(*data.labelled, test=test)


def _open_for(series: Splits, dataset: str | None, root: Path | None) -> Dataset:
    """The requested dataset, else the one that the splits name."""
    spec = dataset_of_splits(series, dataset, root)
    return open_dataset(spec["name"], spec.get("root"))


def dataset_of_splits(series: Splits, dataset: str | None, root: Path | str | None) -> dict[str, Any]:
    """That dataset as in settings; a folder with the path it had when the splits were made."""
    from oodml.data import dataset_spec

    name = dataset or series[0].dataset
    if not name:
        raise OodmlError("The splits do not name their dataset: pass --dataset.")
    if name == "folder" and root is None:
        was = series[0].provenance.get("root")
        if was is None or not Path(was).exists():
            gone = f"which is no longer at {was}" if was else "and do not say which"
            raise OodmlError(f"The splits are of images in a folder, {gone}: give it with --root.")
        root = was
    return dataset_spec(name, root)


def _check_classes(series: Splits, ds: Dataset) -> None:
    for split in series:
        ds.class_ids(split.train)
        if split.test_dataset is None:
            ds.class_ids(split.test)
        missing = len(set(ds.classes) - set(split.train) - set(split.test))
        if missing and split.test_dataset is None and split.provenance.get("stage") not in ("removal", None):
            note(f"{split.name} leaves out {missing} classes of {ds.name}.")


def _verdict(stated: float | None, now: float, tolerance: float) -> str:
    if stated is None:
        return "not stated"
    return "as stated" if abs(now - stated) <= tolerance * stated else "DIFFERS"


def _numbered(series: Splits) -> list[dict[str, Any]]:
    """The progression with the number of each chosen split."""
    chosen = {(s.provenance.get("stage"), s.provenance.get("step")): i for i, s in enumerate(series, 1)}
    return [
        {**step, **({"chosen": chosen[key]} if (key := (step["stage"], step["step"])) in chosen else {})}
        for step in series.progression
    ]


def _easy_medium_hard(series: Splits, fids: dict[str, float]) -> list[tuple[str, Split]]:
    ordered: list[Split] = sorted(series, key=lambda split: fids[split.name])
    if len(ordered) < 3:
        return [(split.name, split) for split in ordered]
    return [("easy", ordered[0]), ("medium", ordered[len(ordered) // 2]), ("hard", ordered[-1])]


def _both(train: int, test: int) -> str:
    """Sizes of the two sides, for a table."""
    return f"{train:,} + {test:,}"


def _made_from(data: Described) -> dict[str, str]:
    """A split's provenance: its features, and the path of a folder, so that later commands find it."""
    place = data.ds.source.place if data.ds.name == "folder" else ""
    return {**data.origin, **({"root": place} if place else {})}
