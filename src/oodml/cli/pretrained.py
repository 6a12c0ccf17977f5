"""`oodml pretrained`: published encoders on splits, without training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from oodml._errors import OodmlError
from oodml.cli._app import app, folder_given, out, print_table
from oodml.cli.study_score import backbone_given


@app.command("pretrained")
def pretrained_command(
    dataset: str | None = typer.Argument(None, help="A data set's name, or a folder of class folders."),
    root: Path | None = typer.Option(None, help="Where the pictures are, if not at the data set's usual place."),
    splits: str = typer.Option("default", help="A file of splits, FILE#NAME for one of them, or default."),
    backbone: list[str] = typer.Option(
        ["tf_efficientnet_lite0"],
        help="May be repeated: a registered name, any timm name, clip, dinov2, ...; NAME=FILE gives it weights.",
    ),
    form: list[str] = typer.Option(["normalised"], help="normalised, raw, whitened; may be repeated."),
    components: int | None = typer.Option(None, help="With --form whitened: directions it keeps; default: all."),
    metrics: str = typer.Option("recall@1,map@1000,nmi", help="Comma-separated names."),
    study: Path | None = typer.Option(
        None, help="Instead of DATASET: a study, as `oodml study score` does.", callback=folder_given
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON (fractions) instead of a table (per cent)."),
) -> None:
    """Score published encoders as they are, without training.

    Each on the test classes of every split.
    """
    names = [name.strip() for name in metrics.split(",")]
    if study is not None:
        if dataset is not None or root is not None or splits != "default":
            raise OodmlError("--study brings its own data set and splits: leave DATASET, --root and --splits out.")
        rows = _in_study(study, backbone, form, components, device)
    elif dataset is None:
        raise OodmlError("Give a data set (`oodml datasets` lists them), or --study FOLDER.")
    else:
        from oodml.cli._inputs import open_dataset, quietly
        from oodml.encoders import evaluate_pretrained

        found = quietly(
            evaluate_pretrained,
            open_dataset(dataset, root),
            splits,
            [backbone_given(each) for each in backbone],
            forms=form,
            components=components,
            metrics=names,
            device=device,
        )
        rows = [asdict(row) for row in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    shown = [name for name in names if all(name in row["scores"] for row in rows)]
    # What is the same in every row is said once, above: names of encoders are long.
    varied = [key for key in ("form", "split") if len({row[key] for row in rows}) > 1]
    common = [f"{key} {rows[0][key]}" for key in ("form", "split") if rows and key not in varied]
    cells = [
        [row["backbone"], *(row[key] for key in varied), *(f"{100 * row['scores'][name]:.1f}" for name in shown)]
        for row in rows
    ]
    title = " · ".join(["test classes, %, no training", *common])
    print_table(title, ["encoder", *varied, *shown], cells)
    if study is not None:
        out.print(f"they are in the table of {study} now", highlight=False, soft_wrap=True)


def _in_study(
    study: Path, backbones: list[str], forms: list[str], components: int | None, device: str
) -> list[dict[str, Any]]:
    from oodml.cli._inputs import quietly
    from oodml.encoders.score import WHITENED, check_forms
    from oodml.study.encoders import add_encoder

    check_forms(forms, components)
    encoders, rows = [backbone_given(each) for each in backbones], []
    for form in forms:
        kept = components if form == WHITENED else None
        for encoder in encoders:
            held = quietly(add_encoder, study, encoder, form=form, components=kept, device=device)
            for split, scores in held["splits"].items():
                rows.append({"backbone": held["label"], "form": form, "split": split, "scores": scores})
    return rows
