"""`oodml audit FOLDER`: how well would embeddings generalise on these pictures?"""

from __future__ import annotations

import time
from pathlib import Path

import typer

from oodml.cli._app import app, folder_given, out, resumable
from oodml.cli.study_show import show_study


@app.command()
def audit(
    folder: Path = typer.Argument(help="Your pictures: a folder (or tar) of class folders."),
    target: str = typer.Option(None, help="Pictures it will be used on: a folder, with or without class folders."),
    minutes: float = typer.Option(10.0, help="The time it may take."),
    output: Path = typer.Option(
        Path("audit"),
        "--out",
        help="Where runs and report go; started again, it keeps what fits.",
        callback=folder_given,
    ),
    backbone: str = typer.Option("tf_efficientnet_lite0", help="Network that describes the pictures."),
    workers: int = typer.Option(None, min=1, help="Runs side by side; default: one a core."),
    quiet: bool = typer.Option(False, help="No progress bars."),
) -> None:
    """Which method suits your pictures, and what to expect of it.

    It says which recall to expect on unseen classes like yours and unlike yours, and whether training pays at all. A
    frozen network describes the pictures; splits of rising shift are built from them, and a handful of
    methods is trained as a head on the features, sized to the time given.
    """
    began = time.monotonic()  # loading the libraries counts too
    from oodml.cli._inputs import note, open_unlabelled
    from oodml.reporting import report
    from oodml.study.audit import audit as run_audit
    from oodml.study.leaderboard import METRIC

    pictures = open_unlabelled(target) if target else None
    with resumable():
        found = run_audit(folder, pictures, minutes, output, quiet, backbone, workers, began)
    show_study(found.table, (METRIC,))
    for sentence in found.answer:
        out.print(sentence, soft_wrap=True, highlight=False)
    for each in found.notes:
        note(each)
    page = report(output, output / "report.html", title=f"Audit of {folder.resolve().name}")
    out.print(f"Report: {page.resolve()}", soft_wrap=True, highlight=False)
