"""`oodml evaluate`: score embeddings of a file or a run. `oodml retrieval-time`: the cost of their size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml._errors import OodmlError
from oodml.cli import _options as option
from oodml.cli._app import app, chosen_dataset, out, parse_integers, print_table
from oodml.cli._inputs import quietly

if TYPE_CHECKING:
    from oodml.evaluation import Scores

_EMBEDDINGS, _LABELS = ("embeddings", "features", "x"), ("labels", "y")


@app.command("evaluate")
def evaluate_command(
    file: Path | None = typer.Argument(None, help="A .npz or .safetensors with `embeddings` (N, d) and `labels` (N)."),
    run: Path | None = typer.Option(None, help="Instead of a file: a finished run, whose model embeds the images."),
    dataset: str | None = option.OTHER_DATASET,
    root: Path | None = typer.Option(None, help="With --dataset: where its images are."),
    split: str | None = typer.Option(
        None, help="With --run: a split, whose test classes are scored; default: with --dataset all."
    ),
    metrics: str = typer.Option("", help="Comma-separated names; default: recall, map, r-precision, nmi, f1."),
    k: str = typer.Option("", help="Cut-offs of recall, comma-separated."),
    gallery: Path | None = typer.Option(
        None, callback=option.file_given, help="Search the rows of this file instead of the other embeddings."
    ),
    match: str = typer.Option("", help="CLASSES,IMAGES: add recall@1 at this common size."),
    rerank: str = typer.Option("", help="query-expansion or k-reciprocal."),
    normalise: bool = typer.Option(False, "--normalise", help="Divide each embedding by its norm first."),
    interval: bool = typer.Option(False, "--interval", help="Add a 95 % bootstrap interval over classes."),
    seed: int = typer.Option(0, min=0, help="Seed of k-means and of the draws of matched recall."),
    device: str = option.DEVICE,
    as_json: bool = option.JSON,
) -> None:
    """Score embeddings in a file, or those of a finished run.

    Exact retrieval, clustering and thresholds, from one neighbour search.
    """
    given = _one_of(file, run, {"--dataset": dataset, "--root": root, "--split": split})
    embeddings, labels = _embed(given, chosen_dataset(dataset, root), split, device) if run else _load(given)
    others, other_labels = _load(gallery) if gallery else (None, None)

    from oodml.evaluation import evaluate

    scores = quietly(
        evaluate,
        embeddings,
        labels,
        option.names_given(metrics),
        others,
        other_labels,
        k=parse_integers("--k", k) if k else None,
        match=_pair(match) if match else None,
        rerank=rerank or None,
        normalise=normalise,
        device=device,
        seed=seed,
    )
    intervals = {name: quietly(scores.interval, name) for name in scores.per_query} if interval else {}
    if as_json:
        finite = {name: value if math.isfinite(value) else None for name, value in scores.items()}
        typer.echo(json.dumps({"scores": finite, "intervals": intervals, "notes": scores.notes}, indent=1))
    else:
        _print(given, scores, intervals)
        out.print(f"scored: {_count(labels)}", highlight=False)


def _count(labels: Any) -> str:
    """How many images and classes were scored."""
    import numpy as np

    found = np.asarray(labels)
    classes = f" of {len(np.unique(found)):,} classes" if found.ndim == 1 else ""
    return f"{len(found):,} images{classes}"


def _print(file: Path, scores: Scores, intervals: dict[str, tuple[float, float]]) -> None:
    columns = ["metric", "%", *(["95 % interval over classes"] if intervals else [])]
    rows = []
    for name, value in scores.items():
        low_high = intervals.get(name)
        spread = [f"{100 * low_high[0]:.2f} – {100 * low_high[1]:.2f}" if low_high else ""] if intervals else []
        rows.append([name, f"{100 * value:.2f}", *spread])
    print_table(str(file), columns, rows)
    for topic, note in scores.notes.items():
        out.print(f"{topic}: {note}", highlight=False)


def _one_of(file: Path | None, run: Path | None, of_run: dict[str, Any]) -> Path:
    """The file or the run to score; raise for an option that would be ignored."""
    if file is not None and run is not None:
        raise OodmlError(f"Two things to score, the file {file} and --run {run}: give one of them.")
    given = file or run
    if given is None:
        raise OodmlError("Give a file of embeddings, or --run with a finished run's folder.")
    if run is None and (without := [option for option, value in of_run.items() if value is not None]):
        raise OodmlError(
            f"{', '.join(without)} say what a run is tested on, and embeddings in a file are scored as they are: give "
            "--run too, or leave them out."
        )
    return given


def _embed(run: Path, dataset: dict[str, Any] | None, split: str | None, device: str) -> tuple[Any, Any]:
    option.run_given(run)

    from oodml.adaptation import embed_run

    return quietly(embed_run, run, dataset, split, device)


def _load(file: Path) -> tuple[Any, Any]:
    """Embeddings and labels of a file; the labels are None if it has none."""
    if not file.is_file():
        raise OodmlError(f"There is no file {file}: give a .npz or .safetensors with embeddings and labels.")
    arrays = _read_arrays(file)
    embeddings = next((arrays[name] for name in _EMBEDDINGS if name in arrays), None)
    labels = next((arrays[name] for name in _LABELS if name in arrays), None)
    if embeddings is None or labels is None:
        raise OodmlError(
            f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}; expected `embeddings` (N, d) and `labels` (N)."
        )
    return embeddings, labels


def _read_arrays(file: Path) -> dict[str, Any]:
    try:
        if file.suffix == ".npz":
            import numpy as np

            with np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(file))
    except Exception as error:  # anything that reading a damaged file raises
        raise OodmlError(f"{file} could not be read ({error}): is it a whole {file.suffix} file?") from error
    raise OodmlError(f"{file} is neither .npz nor .safetensors: save `embeddings` and `labels` in one of these.")


def _pair(text: str) -> tuple[int, int]:
    numbers = parse_integers("--match", text)
    if len(numbers) != 2:
        raise OodmlError(f"--match {text!r}: give two numbers, CLASSES,IMAGES, for example 50,20.")
    return numbers[0], numbers[1]


@app.command("retrieval-time")
def retrieval_time_command(
    images: int = typer.Option(250_000, min=2, help="Number of embeddings; each is searched among all."),
    device: str = option.DEVICE,
    dims: str = typer.Option("32,64,128,256,512,1024,2048", help="Sizes of the embedding."),
) -> None:
    """Measure the time of a search by the size of embeddings.

    Print it next to table 3 of S2SD.
    """
    sizes = parse_integers("--dims", dims)
    if min(sizes) < 1:
        raise OodmlError(f"--dims {dims!r}: an embedding has one dimension or more; leave {min(sizes)} out.")

    from oodml._machine import pick_device
    from oodml.evaluation.neighbours import retrieval_seconds
    from oodml.study.published import published

    place = pick_device(device)
    found = retrieval_seconds(sizes, images, str(place))
    theirs = {number.method: number.value for number in published("s2sd-3")}
    first = next(iter(found.values()))
    rows = [
        [dim, f"{seconds:.3f}", f"{seconds / first:.2f}", f"{theirs[f'd{dim}']:.2f}" if f"d{dim}" in theirs else "–"]
        for dim, seconds in found.items()
    ]
    columns = ["dimensions", "seconds", "relative", "published: faiss, 1080Ti, 250,000"]
    print_table(f"Nearest neighbour of {images:,} embeddings on {place}", columns, rows)
