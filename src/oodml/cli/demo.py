"""`oodml demo`: the whole job on the embedded data set."""

from __future__ import annotations

from pathlib import Path

import typer

from oodml.cli._app import app, folder_given, out


@app.command()
def demo(
    folder: Path = typer.Option(
        Path("demo"), "--out", help="Where runs and the report go; started again, it goes on.", callback=folder_given
    ),
    small: bool = typer.Option(False, help="A few seconds instead of a few minutes: ten steps a run."),
) -> None:
    """Do the whole job on an embedded data set, in minutes.

    Features, splits of rising shift, three methods on each, a table and a report page; nothing is downloaded.
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
