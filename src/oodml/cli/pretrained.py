"""`oodml pretrained`: published encoders on splits, without training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from oodml._errors import OodmlError
from oodml.cli import _options as option
from oodml.cli._app import app, out, print_table
from oodml.cli._inputs import open_dataset, quietly
from oodml.cli.study_score import backbone_given


@app.command("pretrained")
def pretrained_command(
    dataset: str | None = typer.Argument(None, help="Name of a dataset, or a folder or tar of class folders."),
    root: Path | None = option.ROOT,
    splits: str = typer.Option("default", help="Split file, FILE#NAME for one of its splits, or default."),
    backbone: list[str] = typer.Option(
        [option.DEFAULT_BACKBONE],
        help="May be repeated: a registered name, any timm name, clip, dinov2, ...; NAME=FILE gives it weights.",
    ),
    form: list[str] = typer.Option(["normalised"], help="normalised, raw, whitened; may be repeated."),
    components: int | None = typer.Option(None, help="With --form whitened: directions it keeps; default: all."),
    metrics: str = typer.Option("recall@1,map@1000,nmi", help="Comma-separated names."),
    study: str | None = typer.Option(
        None, help="Instead of DATASET: a study, as `oodml study score` does.", callback=option.study_given
    ),
    device: str = option.DEVICE,
    quiet: bool = option.QUIET,
    as_json: bool = option.JSON,
) -> None:
    """Score published encoders as they are, without training.

    Score each on the test classes of every split.
    """
    names = option.names_given(metrics) or []
    if study is not None:
        if dataset is not None or root is not None or splits != "default":
            raise OodmlError("--study has its own dataset and splits: leave DATASET, --root and --splits out.")
        rows = _in_study(study, backbone, form, components, device, quiet)
    elif dataset is None:
        raise OodmlError("Give a dataset (`oodml datasets` lists them), or --study FOLDER.")
    else:
        ds = open_dataset(dataset, root)

        from oodml.encoders import evaluate_pretrained

        found = quietly(
            evaluate_pretrained,
            ds,
            splits,
            [backbone_given(each) for each in backbone],
            forms=form,
            components=components,
            metrics=names,
            device=device,
            quiet=quiet,
        )
        rows = [asdict(row) for row in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    shown = [name for name in names if all(name in row["scores"] for row in rows)]
    # What is the same in every row goes into the title: names of encoders are long.
    varied = [key for key in ("form", "split") if len({row[key] for row in rows}) > 1]
    common = [f"{key} {rows[0][key]}" for key in ("form", "split") if rows and key not in varied]
    cells = [
        [row["backbone"], *(row[key] for key in varied), *(f"{100 * row['scores'][name]:.1f}" for name in shown)]
        for row in rows
    ]
    title = " · ".join(["test classes, %, no training", *common])
    print_table(title, ["encoder", *varied, *shown], cells)
    if study is not None:
        out.print(f"added to the table of {study}", highlight=False, soft_wrap=True)


def _in_study(
    study: str, backbones: list[str], forms: list[str], components: int | None, device: str, quiet: bool
) -> list[dict[str, Any]]:
    from oodml.encoders.score import WHITENED, check_forms
    from oodml.study.encoders import add_encoder

    check_forms(forms, components)
    encoders, rows = [backbone_given(each) for each in backbones], []
    for form in forms:
        kept = components if form == WHITENED else None
        for encoder in encoders:
            held = quietly(add_encoder, study, encoder, form=form, components=kept, device=device, quiet=quiet)
            for split, scores in held["splits"].items():
                rows.append({"backbone": held["label"], "form": form, "split": split, "scores": scores})
    return rows
