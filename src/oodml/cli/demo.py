"""`oodml demo`: the whole job on the embedded data set."""

from __future__ import annotations

from pathlib import Path

import typer

from oodml.cli._app import app, out, print_table


@app.command()
def demo(
    folder: Path = typer.Option(Path("demo"), "--out", help="Where runs and the report go; started again, it goes on."),
    small: bool = typer.Option(False, help="A few seconds instead of a few minutes: ten steps a run."),
) -> None:
    """Features, splits of rising shift, three methods on each, a table and a report page; no download."""
    from oodml.reporting import write_page
    from oodml.study import run_study
    from oodml.study.matched import METRIC
    from oodml.study.presets import demo_study

    study = demo_study(small)
    table = run_study(study, folder)
    metrics = ["recall@1", METRIC]
    for metric in metrics:
        ranking = table.ags(metric)
        rows = []
        for method in table.methods:
            cells = [table.cell(metric, method, split) for split in table.splits]
            ags = f"{100 * ranking[method].mean:.1f}" if method in ranking else "–"
            rows.append([method, *[f"{100 * c.mean:.1f}" if c else "–" for c in cells], ags])
        heads = [f"FID {fid:.3g}" if fid < 100 else f"FID {fid:.0f}" for fid in table.fids]
        print_table(f"{metric} in per cent", ["method", *heads, "AGS"], rows)
    how = {
        "data set": "glyphs: characters drawn from fonts; train and test are different characters",
        "splits": f"{len(table.splits)}, built by swapping and removing classes",
        "runs": f"{len(table.rows)}, backbone {study.run['backbone']}, {study.run['steps']} steps each",
        "selection": f"best evaluation on held-out train classes, every {study.run['eval_every']} steps",
        "matched": "recall@1 with every test set reduced to the smallest one, so that splits can be compared",
    }
    page = write_page(table, folder / "report.html", "Glyphs under rising shift", metrics, how)
    out.print(f"Report: {page.resolve()}", soft_wrap=True)
