"""`oodml report`: the page of a study."""

from __future__ import annotations

from pathlib import Path

import typer

from oodml.cli._app import app, folder_given, out


@app.command("report")
def report_command(
    study: str = typer.Argument(..., help="The folder of a study, or the URL of its store.", callback=folder_given),
    page: Path = typer.Option(Path("report.html"), "--out", "-o", help="File of the page."),
    figures: Path | None = typer.Option(
        None, help="Also write every figure as PNG and SVG into this folder.", callback=folder_given
    ),
    metric: str | None = typer.Option(None, help="Metric of the answer, the first views and the figures."),
    title: str | None = typer.Option(None, help="The heading of the page; default: the dataset's name."),
) -> None:
    """Write the page of a study, one file that loads nothing.

    The answer in sentences, charts, tables, retrieval galleries, and how it was made.
    """
    from oodml.reporting import report

    written = report(study, page, figures, metric, title)
    out.print(f"Report: {written.resolve()}", soft_wrap=True)
    if figures is not None:
        out.print(f"Figures: {figures.resolve()}", soft_wrap=True)
