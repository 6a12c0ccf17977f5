"""`oodml few-shot`: adapt a finished run to a few labelled images of the test classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml.cli._app import app, chosen_dataset, out, print_table

if TYPE_CHECKING:
    from oodml.adaptation import FewShot


@app.command("few-shot")
@app.command("fewshot", hidden=True)  # its name in version 1
def fewshot_command(
    run: Path = typer.Argument(help="The folder of a finished run; only --save changes it."),
    split: str | None = typer.Option(None, help="A split file (or FILE#NAME) with episodes; default: the run's split."),
    shots: list[int] = typer.Option([2, 5], help="Labelled images per test class; may be repeated."),
    episodes: int = typer.Option(10, help="Number of support sets to average over."),
    dataset: str | None = typer.Option(None, help="Adapt to another dataset than the run's: a name, or a folder."),
    root: str | None = typer.Option(None, help="With --dataset: where its images are."),
    lr: str = typer.Option(
        "auto",
        help="Learning rate; 1e-4: as published; auto: choose rate and steps on the validation classes of the run.",
    ),
    steps: int | None = typer.Option(
        None, help="Steps of fine-tuning (auto: at most); default: 1000, 1500, 2000 for 2, 5, 10 shots."
    ),
    exact: bool = typer.Option(False, help="Draw augmentations anew at every step, as published; far slower."),
    views: int | None = typer.Option(None, help="Number of augmented views, computed once; default: as in the run."),
    seed: int = typer.Option(0, min=0, help="Seed of batches, mining and augmentation."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    save: bool = typer.Option(False, help="Store the result in few_shot.json of the run, for reports."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON (fractions) instead of a table (per cent)."),
) -> None:
    """Adapt a finished run to a few labelled images.

    Fine-tune the last layers of RUN on a few images of every test class, and score the others before and after.
    """
    from oodml._progress import tell
    from oodml.adaptation import few_shots, save_few_shot

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
    """A number if it is one; `few_shot` checks anything else."""
    try:
        return float(text)
    except ValueError:
        return text


def _columns(found: FewShot, metric: str) -> list[str]:
    """Before, after, and the gain, in per cent; only the gain is not limited to 0–100."""
    from oodml.evaluation.estimate import share_text

    gain = found.gain(metric)
    known = gain.half_width == gain.half_width  # NaN for a single episode
    return [
        *(share_text(side[metric].mean, side[metric].half_width, 2) for side in (found["zero"], found["few"])),
        f"{100 * gain.mean:.2f}" + (f" ± {100 * gain.half_width:.2f}" if known else ""),
    ]
