"""`oodml study score` and `forecast`: other encoders on a study's splits, and other images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from oodml.cli._app import out, print_table
from oodml.cli.study import FOLDER, study_app


@study_app.command("score")
def score_command(
    folder: str = FOLDER,
    encoder: list[str] = typer.Argument(
        help="A backbone (a registered or timm name, clip, dinov2, …; NAME=FILE gives it weights); module:function "
        "from a list of PIL images to vectors; a folder with one SPLIT.npz per split; or one .npz with the embeddings "
        "of all images. Several backbones may be given."
    ),
    label: str | None = typer.Option(None, "--name", help="The encoder's name in the table; a backbone has its own."),
    form: str | None = typer.Option(
        None, help="normalised, raw or whitened. Default: normalised for backbones, else raw."
    ),
    normalise: bool = typer.Option(False, help="The same as --form normalised."),
    components: int | None = typer.Option(None, help="With --form whitened: directions it keeps; default: all."),
    batch_size: int = typer.Option(64, min=1, help="Images per call of the function."),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    quiet: bool = typer.Option(False, help="No progress bar."),
) -> None:
    """Score encoders without training on every split.

    They enter the study's table and ranking.
    """
    from oodml._errors import OodmlError
    from oodml.study import add_encoder, load_study
    from oodml.study.leaderboard import METRIC, ranking

    if label is not None and len(encoder) > 1:
        raise OodmlError("--name is the name of one encoder: give one, or leave it out.")
    form = "normalised" if normalise and form is None else form
    shown = ["recall@1", METRIC, "map@r", "nmi"]
    for each in map(backbone_given, encoder):
        options: dict[str, Any] = {"form": form, "components": components, "batch_size": batch_size}
        found = add_encoder(folder, each, label, device=device, quiet=quiet, **options)
        rows = [
            [split, *[f"{100 * scores[m]:.1f}" if m in scores else "–" for m in shown]]
            for split, scores in found["splits"].items()
        ]
        print_table(f"{found['label']} in per cent", ["split", *shown], rows)
        table = load_study(folder)
        ranked = list(ranking(table, METRIC if METRIC in table.metrics else "recall@1"))
        if found["label"] in ranked:
            place = f"number {ranked.index(found['label']) + 1} of {len(ranked)} by recall@1 over the shift."
            out.print(f"{found['label']} is {place}", highlight=False, soft_wrap=True)


def backbone_given(text: str) -> str | dict[str, str]:
    """`NAME=FILE`: a backbone with its weights."""
    name, equals, file = text.partition("=")
    return {"name": name, "weights": file} if equals else text


@study_app.command("forecast")
def forecast_command(
    folder: str = FOLDER,
    target: str = typer.Argument(help="Images it will be used on: a folder, with or without class folders."),
    method: str = typer.Option(None, help="Of the study; default: its best."),
    backbone: str = typer.Option("tf_efficientnet_lite0", help="Network whose features measure the shift."),
    quiet: bool = typer.Option(False, help="No progress bars."),
) -> None:
    """Forecast the recall on other images.

    It is read from the study's curve at their shift.
    """
    from oodml.auditing import forecast_target
    from oodml.cli._inputs import open_unlabelled, quietly
    from oodml.reporting.words import target_sentences

    name = Path(target).resolve().name
    placed, held = quietly(forecast_target, folder, open_unlabelled(target), name, backbone, method, quiet)
    for sentence in [f"Forecast for {held['method']}.", *target_sentences(placed, held)]:
        out.print(sentence, highlight=False, soft_wrap=True)
