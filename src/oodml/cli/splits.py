"""`oodml splits`: build, show, verify and compare splits of rising shift."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml._errors import OodmlError
from oodml.cli._app import app, folder_given, out, print_table
from oodml.cli._inputs import (
    BACKBONE_OPTION,
    DATASET,
    MODE,
    ROOT_OPTION,
    TEST_ROOT,
    WEIGHTS_OPTION,
    both,
    describe,
    features_of,
    made_from,
    open_dataset,
    quietly,
)
from oodml.cli._split_files import FILE, counted_splits, describe_for, distances_for, open_for

if TYPE_CHECKING:
    from oodml.shift import Split, Splits

splits = typer.Typer(help="Train-test splits of rising shift: build, show, verify.", no_args_is_help=True)
app.add_typer(splits, name="splits")


@splits.command()
def build(
    dataset: str = DATASET,
    output: Path = typer.Option(Path("splits.json"), "-o", "--out", help="File for the series."),
    count: int = typer.Option(8, "-n", "--splits", help="How many splits to choose."),
    start: str = typer.Option("default", help="default (that of the dataset), half, random, or a split file."),
    reverse: bool = typer.Option(False, help="Also build splits easier than the start."),
    removal: bool = typer.Option(True, help="Drop the classes nearest to the other side after swapping."),
    keep: float = typer.Option(0.5, help="Share of the images that must remain."),
    swaps: int = typer.Option(None, "--swaps-per-step", help="Classes exchanged per step and side."),
    fid_mode: str = MODE,
    seed: int = typer.Option(0, min=0, help="Seed of the validation classes and of a random start."),
    root: Path = ROOT_OPTION,
    backbone: str = BACKBONE_OPTION,
    weights: Path = WEIGHTS_OPTION,
) -> None:
    """Build splits whose shift rises evenly.

    Classes are swapped between the sides and then removed, and splits chosen at even distances.
    """
    from oodml.shift import build_splits, save_splits

    ds = open_dataset(dataset, root)
    data = describe(ds, backbone, weights)
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
        provenance=made_from(data),
    )
    save_splits(output, series)
    rows = [
        (s.name, p["stage"], p["step"], both(*p["classes"]), both(*p["images"]), f"{s.fid:.2f}")
        for s, p in ((s, s.provenance) for s in series)
    ]
    columns = ["split", "stage", "step", "classes", "images", "FID"]
    print_table(f"{ds.name}, {backbone}, FID over {fid_mode}", columns, rows)
    out.print(f"{counted_splits(series)} in {output}", soft_wrap=True)


@splits.command()
def show(
    file: str = FILE,
    folder: Path = typer.Option(
        None, "--out", help="Folder of the figures; default: next to the file.", callback=folder_given
    ),
    projection: str = typer.Option("auto", help="Map by umap, tsne or pca; auto: umap if installed, else tsne."),
    root: Path = ROOT_OPTION,
    backbone: str = typer.Option(None, help="Default: the one the splits were built with."),
    weights: Path = WEIGHTS_OPTION,
    dataset: str = typer.Option(None, help="Default: the one the splits name."),
    test_root: Path = TEST_ROOT,
) -> None:
    """Print sizes and distances of splits, and draw them.

    Classes, images, FID and KID; figures of the progression and of a map of easy, medium and hard splits.
    """
    from oodml.reporting.split_figures import check_projection, draw_map, draw_progression
    from oodml.shift import load_splits, split_address

    check_projection(projection)  # before anything is computed or drawn
    series = load_splits(file)
    data = describe_for(series, dataset, root, backbone, weights)
    distances = distances_for(series, data, test_root, weights)
    rows, fids = [], {}
    for split in series:
        found = distances.measure(split)
        fids[split.name] = found.fid
        kid = f"{found.kid:.4f} ± {found.kid.standard_error:.4f}" if found.kid is not None else "–"
        sizes = both(len(split.train), len(split.test)), both(found.train_images, found.test_images)
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
    root: Path = ROOT_OPTION,
    backbone: str = typer.Option(None, help="Default: the one the splits were built with."),
    weights: Path = WEIGHTS_OPTION,
    dataset: str = typer.Option(None, help="Default: the one the splits name."),
    test_root: Path = TEST_ROOT,
    tolerance: float = typer.Option(1e-3, min=0, help="Largest relative difference of the distances."),
) -> None:
    """Check a split file against its data set.

    Computes the distances again; fails if one differs.
    """
    from oodml.shift import episode_indices, load_splits

    series = load_splits(file)
    data = describe_for(series, dataset, root, backbone, weights)
    distances = distances_for(series, data, test_root, weights)
    same_features = features_of(data)
    rows, wrong = [], 0
    for split in series:
        now = distances.fid(split)
        for shots, listed in split.episodes.items():
            for number in range(len(listed)):
                episode_indices(split, data.ds, shots, number)
        comparable = all(split.provenance.get(key) == value for key, value in same_features.items())
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
def episodes(
    file: str = FILE,
    output: Path = typer.Option(None, "-o", "--out", help="Default: the same file."),
    shots: list[int] = typer.Option([2, 5, 10], help="Support images per class; may be given several times."),
    count: int = typer.Option(10, "--episodes", help="Episodes of each number of shots."),
    seed: int = typer.Option(0, min=0, help="Seed of the draw."),
    official: Path = typer.Option(None, help="Add the authors' episodes of this file whose images exist."),
    root: Path = ROOT_OPTION,
    dataset: str = typer.Option(None, help="Default: the one the splits name."),
) -> None:
    """Add few-shot episodes to every split of a file.

    N support images of each test class; the rest are queries.
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
    ds = open_for(series, dataset or series[0].test_dataset, root)
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
