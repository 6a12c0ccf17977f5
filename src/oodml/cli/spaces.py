"""`oodml spaces`: a page of the embedding spaces inside a run."""

from __future__ import annotations

from pathlib import Path

import typer

from oodml.cli._app import app, method_name, out, print_table, with_root


@app.command("spaces")
def spaces_command(
    run: Path = typer.Argument(..., help="The folder of a finished run."),
    page: Path = typer.Option(Path("spaces.html"), "--out", "-o", help="File for the page."),
    figures: Path | None = typer.Option(None, help="Also write galleries and maps as PNG and SVG into this folder."),
    side: str = typer.Option("test", help="The classes to show: test or train."),
    root: Path | None = typer.Option(None, help="Where the images are now, if they have moved."),
    gap: bool = typer.Option(False, "--gap", help="Also score every space on train and test classes."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
) -> None:
    """Write a page of the embedding spaces inside a run.

    It shows neighbours of other classes and maps with thumbnails, in each embedding and in the features.
    For `sharing` these are φ (discriminative), φ* (shared) and both concatenated; for `diva` its four.
    """
    from oodml._files import check_writable
    from oodml.adaptation.spaces import generalisation_gap, neighbours_across_classes, run_spaces
    from oodml.config import RunConfig
    from oodml.data import load_dataset
    from oodml.reporting.spaces_page import NEIGHBOURS, ShownSpaces, choose_images, spaces_page
    from oodml.training.distributed import join
    from oodml.training.result import load_result

    load_result(run)  # first: it raises a clear error if there is no finished run
    check_writable(page.parent, "--out")
    if figures is not None:
        check_writable(figures, "--figures")
    device = str(join(device).device)
    config = RunConfig.of_run(run)
    dataset = load_dataset(with_root(config.dataset, str(root)) if root else config.dataset)
    spaces = run_spaces(run, side, dataset, device=device)
    mapped, queries = choose_images(spaces.labels)
    scored = generalisation_gap(run, dataset, device=device) if gap else []
    shown = ShownSpaces(
        title=f"{config.dataset_name}: the spaces of {method_name(config.method)}",
        subtitle=f"{run.name}, {side} classes",
        dataset=spaces.dataset,
        rows={name: rows.numpy() for name, rows in spaces.rows.items()},
        indices=spaces.indices,
        neighbours=neighbours_across_classes(spaces, queries, NEIGHBOURS),
        mapped=mapped,
        queries=queries,
        gap=scored,
    )
    written = spaces_page(shown, page, figures)
    if scored:
        cells = [
            [r["space"], r["dim"], *(f"{100 * r[part]:.1f}" for part in ("train", "test")), f"{100 * r['gap']:+.1f}"]
            for r in scored
        ]
        print_table("recall@1, %", ["space", "size", "train", "test", "gap"], cells)
    out.print(f"Spaces: {written.resolve()}", soft_wrap=True)
    if figures is not None:
        out.print(f"Figures: {figures.resolve()}", soft_wrap=True)
