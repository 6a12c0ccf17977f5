"""`oodml study list` and `oodml study compare`: the papers' experiments, and the papers' numbers."""

from __future__ import annotations

import typer

from oodml.cli._app import out, print_table
from oodml.cli.study import FOLDER, study_app


@study_app.command("list")
def list_command(
    name: str | None = typer.Argument(None, help="One preset, with its settings; or a part of names."),
) -> None:
    """List the presets.

    What each reproduces, and what it still needs.
    """
    from itertools import groupby

    import yaml

    from oodml.study.presets import matching_presets, presets, unknown_preset

    if name is not None and name in presets():
        preset = presets()[name]
        for key, text in preset.header.items():
            out.print(f"{key}: {text}", highlight=False)
        if preset.needs:
            out.print(f"Needs: {', '.join(preset.needs)}", highlight=False)
        out.print(yaml.safe_dump(dict(preset.settings), sort_keys=False, allow_unicode=True))
        return
    shown = list(presets().values()) if name is None else matching_presets(name)
    if name is not None and not shown:
        raise unknown_preset(name)
    for experiment, versions in groupby(shown, key=lambda each: each.experiment):
        group = list(versions)
        out.print(f"\n{experiment}", style="bold", highlight=False)
        _indented(group[0].header["Reproduces"])
        if ready := [preset.name for preset in group if not preset.needs]:
            _indented(", ".join(ready), "cyan")
        for preset in group:
            if preset.needs:
                _indented(f"{preset.name}: needs {', '.join(preset.needs)}", "dim")
    out.print("\noodml study list NAME shows what a preset costs, what to expect, and its settings.", highlight=False)


def _indented(text: str, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    out.print(Padding(Text(text, style), (0, 0, 0, 2)))


@study_app.command("compare")
def compare_command(
    folder: str = FOLDER,
    table: str | None = typer.Option(None, help="A published table, e.g. oodml-s5; default: all that fit."),
) -> None:
    """Put a study next to the papers' numbers.

    Ours, theirs, the difference and its 95 % interval.
    """
    from oodml._errors import OodmlError
    from oodml.study import load_study
    from oodml.study.plan import load_settings
    from oodml.study.published import (
        comparable_tables,
        compare_with_published,
        matching_tables,
        published_tables,
        reading_notes,
    )

    dataset = load_settings(folder)["dataset"]
    name = dataset if isinstance(dataset, str) else dataset["name"]
    studies = comparable_tables(load_study(folder), folder)
    pairs = [(study, key) for study in studies for key in matching_tables(study, name) if table in (None, key)]
    if not pairs:
        which = f"The published table {table!r}" if table else "No published table"
        raise OodmlError(f"{which} has {'no' if table else 'a'} method, split and metric of this study of {name!r}.")
    for study, key in pairs:
        found = compare_with_published(study, name, key)
        rows = [
            [
                each.row,
                each.place,
                each.theirs.metric,
                f"{100 * each.ours.mean:.2f}",
                f"{100 * each.theirs.value:.2f}",
                f"{100 * each.difference:+.2f}",
                "–" if each.agrees is None else f"{100 * each.low:+.2f} to {100 * each.high:+.2f}",
                *([each.differs] if any(pair.differs for pair in found) else []),
            ]
            for each in found
        ]
        about = published_tables()[key]
        columns = ["method", "split", "metric", "ours", "theirs", "difference", "95 % interval", "not the same"]
        print_table(f"{about['paper']}: {about['table']}", columns[: len(rows[0])], rows)
        for note in filter(None, [about.get("notes"), *reading_notes(study, found)]):
            out.print(note, highlight=False, soft_wrap=True)
