"""`oodml audit FOLDER`: how well would embeddings generalise on these pictures?"""

from __future__ import annotations

import time
from pathlib import Path

import typer

from oodml.cli._app import app, out, print_table


@app.command()
def audit(
    folder: Path = typer.Argument(help="Your pictures: a folder (or tar) of class folders."),
    target: str = typer.Option(None, help="Pictures it will be used on: a folder, with or without class folders."),
    minutes: float = typer.Option(10.0, help="The time it may take."),
    output: Path = typer.Option(Path("audit"), "--out", help="Where runs and report go; started again, it goes on."),
    backbone: str = typer.Option("tf_efficientnet_lite0", help="Network that describes the pictures."),
    workers: int = typer.Option(None, min=1, help="Runs side by side; default: one a core."),
    quiet: bool = typer.Option(False, help="No progress bars."),
) -> None:
    """Which method, what recall on unseen classes like yours and unlike yours, and does training pay at all?

    A frozen network describes the pictures; splits of rising shift are built from them, and a handful of
    methods is trained as a head on the features, sized to the time given.
    """
    began = time.monotonic()  # loading the libraries counts too
    from oodml.cli._pictures_in import note, open_pictures
    from oodml.reporting import report
    from oodml.study.audit import audit as run_audit
    from oodml.study.leaderboard import ranking
    from oodml.study.matched import METRIC

    pictures = open_pictures(target) if target else None
    found = run_audit(folder, pictures, minutes, output, quiet, backbone, workers, began)
    table, ranked = found.table, ranking(found.table, METRIC)
    rows = []
    for method in [*ranked, *(name for name in table.methods if name not in ranked)]:
        cells = [table.cell(METRIC, method, split) for split in table.splits]
        mean = f"{100 * ranked[method].mean:.1f}" if method in ranked else "–"
        rows.append([method, *[f"{100 * cell.mean:.1f}" if cell else "–" for cell in cells], mean])
    heads = [f"FID {fid:.3g}" for fid in table.fids]
    print_table("Recall@1 in per cent, all test sets at one size", ["method", *heads, "AGS"], rows)
    for sentence in found.answer:
        out.print(sentence, soft_wrap=True, highlight=False, markup=False)
    for each in found.notes:
        note(each)
    page = report(output, output / "report.html", title=f"Audit of {folder.resolve().name}")
    out.print(f"Report: {page.resolve()}", soft_wrap=True, highlight=False, markup=False)
