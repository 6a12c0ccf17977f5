"""`oodml study structure`: how methods shape the embedding space."""

from __future__ import annotations

import typer

from oodml.cli._app import print_table
from oodml.cli.study import FOLDER, study_app


@study_app.command("structure")
def structure_command(
    folder: str = FOLDER,
    base: str | None = typer.Option(None, help="A method: the others as relative change against it, in per cent."),
    side: str = typer.Option("train", help="Whose classes: train or test."),
) -> None:
    """Show how methods shape the embedding space.

    Density and spectral decay of every trained method, or their change against one (S2SD figure 2).
    """
    import numpy as np

    from oodml._errors import unknown_name
    from oodml.study import load_study

    table = load_study(folder)
    measures = sorted({name for row in table.rows for name in row.structure.get(side, ())})
    if side not in ("train", "test") or not measures:
        raise unknown_name("side with structure metrics:", side, ("train", "test"))
    if base is not None and base not in table.trained:
        raise unknown_name("trained method of the study", base, table.trained)
    kept = [table.methods.index(name) for name in table.trained]
    values = np.stack([np.nanmean(table.structure(name, side)[kept], axis=(1, 2)) for name in measures], axis=1)
    if base is not None:
        origin = values[table.trained.index(base)]
        cells = [[f"{v:+.1f}" for v in row] for row in 100 * (values - origin) / np.abs(origin)]
    else:
        cells = [[f"{v:.4g}" for v in row] for row in values]
    what = f"change against {base} in per cent" if base else "mean over splits and seeds"
    rows = [[method, *row] for method, row in zip(table.trained, cells, strict=True)]
    print_table(f"Structure on {side} classes, {what}", ["method", *measures], rows)
