"""`oodml fewshot`: what a few labelled images of the test classes are worth to a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml.cli._app import app, chosen_dataset, out, print_table

if TYPE_CHECKING:
    from oodml.training import FewShot


@app.command("fewshot")
def fewshot_command(
    run: Path = typer.Argument(help="The folder of a finished run; it is not changed, unless --save."),
    split: str | None = typer.Option(None, help="A split file (or FILE#NAME) with episodes; default: the run's split."),
    shots: list[int] = typer.Option([2, 5], help="Labelled images of every test class; may be repeated."),
    episodes: int = typer.Option(10, help="Support sets to average over."),
    dataset: str | None = typer.Option(None, help="Adapt to another data set than the run's: a name, or a folder."),
    root: str | None = typer.Option(None, help="With --dataset: where its pictures are."),
    lr: str = typer.Option(
        "auto",
        help="Learning rate of the adaptation; 1e-4: as published; auto: the rate and the steps that gain most on the "
        "run's own validation classes.",
    ),
    steps: int | None = typer.Option(
        None, help="Steps of fine-tuning (auto: at most); default: 1000, 1500, 2000 for 2, 5, 10 shots."
    ),
    exact: bool = typer.Option(False, help="Fresh augmentations at every step, as published: far slower."),
    views: int | None = typer.Option(None, help="Augmented views computed once; default: as many as the run has."),
    seed: int = typer.Option(0, min=0, help="Of batches, mining and augmentation."),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    save: bool = typer.Option(False, help="Store the result in the run's few_shot.json, where reports find it."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON (fractions) instead of a table (per cent)."),
) -> None:
    """Adapt a finished run to a few images of every test class.

    The last layer of RUN is fine-tuned on them, and the other images are scored before and after.
    """
    from oodml._progress import tell
    from oodml.training import save_few_shot
    from oodml.training.fewshot import few_shots

    target = chosen_dataset(dataset, root)
    options: dict[str, Any] = {
        "steps": steps,
        "lr": _rate(lr),
        "exact": exact,
        "views": views,
        "seed": seed,
        "device": device,
    }
    found = few_shots(run, split, shots, episodes, dataset=target, **options)
    for each in found if save else []:
        save_few_shot(run, each)
    if as_json:
        typer.echo(json.dumps({str(each.about["shots"]): each.to_json() for each in found}, indent=1))
    else:
        _print(run, found)
    for note in dict.fromkeys(note for each in found for note in each.notes):
        tell("note", note)


def _print(run: Path, found: list[FewShot]) -> None:
    rows = [[metric, each.about["shots"], *_columns(each, metric)] for metric in found[0]["few"] for each in found]
    columns = ["query images, %", "shots", "zero-shot", "few-shot", "gain"]
    print_table(f"{run} · {found[0].about['dataset']} · {found[0].about['split']}", columns, rows)
    for each in found:
        about = each.about
        adapted = f"{about['steps']} steps at rate {about['lr']:g}" if about["steps"] else "nothing adapted"
        out.print(f"{about['shots']} shots: {adapted}, {about['seconds']:.1f} s", highlight=False)
    out.print(f"mean ± 95 % interval over {found[0].about['episodes']} episodes", highlight=False)


def _rate(text: str) -> float | str:
    """A number where it is one; anything else is for `few_shot` to understand or refuse."""
    try:
        return float(text)
    except ValueError:
        return text


def _columns(found: FewShot, metric: str) -> list[str]:
    """Before, after, and the gain, which unlike the two has no bounds, in per cent."""
    from oodml.evaluation.estimate import share_text

    gain = found.gain(metric)
    known = gain.half_width == gain.half_width  # NaN for a single episode
    return [
        *(share_text(side[metric].mean, side[metric].half_width, 2) for side in (found["zero"], found["few"])),
        f"{100 * gain.mean:.2f}" + (f" ± {100 * gain.half_width:.2f}" if known else ""),
    ]
