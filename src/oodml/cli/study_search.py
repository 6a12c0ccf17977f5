"""`oodml study search` and `oodml study retrieval-time`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from oodml._errors import OodmlError
from oodml.cli._app import folder_given, out, parse_integers, parse_settings, parse_yaml, print_table
from oodml.cli.study import study_app


@study_app.command("search")
def search_command(
    method: str = typer.Argument(help="A method's or a loss's name, or {name: rho, base: triplet}."),
    config: Path | None = typer.Option(None, help="A YAML file with the other settings of the run."),
    folder: Path | None = typer.Option(
        None, "--out", help="Where trials go; started again, it goes on; default: search/METHOD.", callback=folder_given
    ),
    trials: int = typer.Option(20, help="How many runs to try."),
    metric: str = typer.Option("recall@1", help="What counts, on the validation classes."),
    setting: list[str] = typer.Option([], "--set", help="Any setting of the run as key=value."),
) -> None:
    """Search a method's options on validation classes.

    The test classes are never touched. It needs Optuna (pip install optuna).
    """
    import yaml

    from oodml.config import RunConfig
    from oodml.study.search import search, search_name

    values = {**parse_settings(setting), "method": parse_yaml("METHOD", method)}
    run = RunConfig.load(config, **values) if config else RunConfig(**values)
    found = search(run, folder or Path("search") / search_name(values["method"]), trials, metric)
    best = sorted(found.trials, key=lambda trial: -trial[1])[:10]
    names = list(best[0][0])
    rows = [[f"{100 * score:.2f}", *(_shown(options[name]) for name in names)] for options, score in best]
    print_table(f"Best trials: {metric} of the validation classes in per cent", [metric, *names], rows)
    out.print(yaml.safe_dump({"method": found.method}, sort_keys=False), highlight=False)


def _shown(value: Any) -> str:
    """The value of an option, which may be a word."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@study_app.command("retrieval-time")
def retrieval_time_command(
    images: int = typer.Option(250_000, min=2, help="Embeddings to search, each among all."),
    device: str = typer.Option("cpu", help="cpu or cuda."),
    dims: str = typer.Option("32,64,128,256,512,1024,2048", help="Sizes of the embedding."),
) -> None:
    """Measure what the size of embeddings costs in search.

    Beside S2SD's table 3.
    """
    from oodml.evaluation.neighbours import retrieval_seconds
    from oodml.study.published import published

    sizes = parse_integers("--dims", dims)
    if min(sizes) < 1:
        raise OodmlError(f"--dims {dims!r}: an embedding has one dimension or more; leave {min(sizes)} out.")
    found = retrieval_seconds(sizes, images, device)
    theirs = {number.method: number.value for number in published("s2sd-3")}
    first = next(iter(found.values()))
    rows = [
        [dim, f"{seconds:.3f}", f"{seconds / first:.2f}", f"{theirs[f'd{dim}']:.2f}" if f"d{dim}" in theirs else "–"]
        for dim, seconds in found.items()
    ]
    columns = ["dimensions", "seconds", "relative", "published: faiss, 1080Ti, 250,000"]
    print_table(f"Nearest neighbour of {images:,} embeddings on {device}", columns, rows)
