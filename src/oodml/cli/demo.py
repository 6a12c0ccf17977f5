"""`oodml demo`: a whole study on the dataset of the package."""

from __future__ import annotations

from pathlib import Path

import typer

from oodml.cli._app import app, folder_given, out


@app.command()
def demo(
    folder: Path = typer.Option(
        Path("demo"), "--out", help="Folder for runs and report. Rerun to resume.", callback=folder_given
    ),
    small: bool = typer.Option(False, help="Ten steps per run: seconds instead of minutes."),
) -> None:
    """Run a whole study on an embedded dataset, in minutes.

    Features, splits of rising shift, three methods on each, a table and a report page. Nothing is downloaded.
    """
    from oodml.cli.study_show import show_study
    from oodml.reporting import report
    from oodml.study import run_study
    from oodml.study.presets import load_preset

    study = load_preset("demo-small" if small else "demo-glyphs")
    table = run_study(study, folder)
    show_study(table)
    page = report(table, folder / "report.html", title="Glyphs under rising shift")
    out.print(f"Report: {page.resolve()}", soft_wrap=True)
