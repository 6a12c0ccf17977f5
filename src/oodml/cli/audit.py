"""`oodml audit FOLDER`: how well would embeddings generalise on these images?"""

from __future__ import annotations

from pathlib import Path

import typer

from oodml.cli._app import app, folder_given, out, resumable
from oodml.cli.study_show import show_study


@app.command()
def audit(
    folder: Path = typer.Argument(help="Your images: a folder (or tar) of class folders."),
    target: str = typer.Option(None, help="Images the embeddings will be used on: a folder; labels are not needed."),
    budget: str = typer.Option("small", help="How much to run: small, medium or large."),
    minutes: float = typer.Option(None, help="Start no further block of runs that would end later than this."),
    output: Path = typer.Option(
        Path("audit"), "--out", help="Folder for runs and report. Rerun to resume.", callback=folder_given
    ),
    backbone: str = typer.Option("tf_efficientnet_lite0", help="Network that computes the features of the images."),
    workers: int = typer.Option(None, min=1, help="Runs side by side; default: one per core."),
    quiet: bool = typer.Option(False, help="No progress bars."),
) -> None:
    """Find the method for your images and the recall to expect.

    Prints the recall to expect on unseen classes like yours and unlike yours, and whether training pays at all. Splits
    of rising shift are built from the features of a frozen network, and a few methods are trained as heads on them.
    """
    from oodml.auditing import audit as run_audit
    from oodml.cli._inputs import note, open_unlabelled
    from oodml.reporting import report
    from oodml.study.leaderboard import METRIC

    other = open_unlabelled(target) if target else None
    with resumable():
        found = run_audit(
            folder,
            other,
            budget=budget,
            minutes=minutes,
            out=output,
            backbone=backbone,
            workers=workers,
            quiet=quiet,
        )
    show_study(found.table, (METRIC,))
    for sentence in found.answer:
        out.print(sentence, soft_wrap=True, highlight=False)
    for each in found.notes:
        note(each)
    page = report(output, output / "report.html", title=f"Audit of {folder.resolve().name}")
    out.print(f"Report: {page.resolve()}", soft_wrap=True, highlight=False)
