"""`oodml study show`, `export`, `leaderboard`, `compare` and `structure`: print or write the results of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml._errors import OodmlError
from oodml.cli import _options as option
from oodml.cli._app import out, print_table
from oodml.cli.study import FOLDER, study_app

if TYPE_CHECKING:
    from oodml.study import StudyTable


@study_app.command("show")
def show_command(folder: str = FOLDER) -> None:
    """Print the table of a study: scores by split, and AGS."""
    from oodml.study import load_study

    show_study(load_study(folder))


@study_app.command("export")
def export_command(
    folder: str = FOLDER, file: Path = typer.Argument(help="The .csv or .parquet file to write.")
) -> None:
    """Write a study as a flat table, one row per run."""
    from oodml.study import load_study
    from oodml.study.export import export_rows, write_export

    rows = export_rows(folder, load_study(folder))
    out.print(f"{len(rows)} rows in {write_export(rows, file)}", highlight=False, soft_wrap=True)


def show_study(table: StudyTable, metrics: tuple[str, ...] | None = None) -> None:
    """Print one table per metric: methods as rows, splits by shift as columns, at the end AGS (for one shift
    the mean) with its 95 % interval."""
    from oodml.evaluation.estimate import share_text
    from oodml.study.forecast import study_errors
    from oodml.study.leaderboard import METRIC, ranking

    summary = "AGS" if table.shifts > 1 else "mean"
    for metric in (each for each in metrics or ("recall@1", METRIC) if each in table.metrics):
        ranked, rows = ranking(table, metric), []
        for method in table.methods:
            cells = [table.cell(metric, method, split) for split in table.splits]
            score = ranked.get(method)
            aggregate = share_text(score.mean, score.half_width) if score else "–"
            if any(cell is not None for cell in cells):
                rows.append([method, *[f"{100 * c.mean:.1f}" if c else "–" for c in cells], aggregate])
        by, heads = split_heads(table.splits, table.fids)
        print_table(f"{metric} in per cent, by {by}", ["method", *heads, summary], rows)
        if table.shifts > 2 and (errors := study_errors(table, metric)):
            error = 100 * sum(errors.values()) / len(errors)
            text = f"A split left out is predicted from the others to {error:.1f} points (mean over methods)."
            out.print(text, highlight=False, soft_wrap=True)
    for note in filter(None, [*table.notes, table.unfinished]):
        out.print(note, highlight=False, soft_wrap=True)


def split_heads(names: list[str], fids: list[float | None]) -> tuple[str, list[str]]:
    """What the columns of splits show, and their headings: the shift, or names where one is unknown."""
    known = [fid for fid in fids if fid is not None]
    return ("FID", [fid_text(fid) for fid in known]) if len(known) == len(fids) else ("split", list(names))


def fid_text(fid: float) -> str:
    """The shift of a split, short enough for the heading of a column."""
    return f"{fid:.3g}" if fid < 100 else f"{fid:.0f}"


@study_app.command("leaderboard")
def leaderboard_command(
    folder: str = FOLDER,
    output: Path = typer.Option(None, "--out", "-o", help="A .json or .md file; default: print tables."),
    metrics: str = typer.Option("", help="Comma-separated names; default: recall@1 in a terminal, all in a file."),
) -> None:
    """Print or write the ranking of all methods and encoders.

    It compares each with the next one.
    """
    from oodml._files import atomic_file
    from oodml.reporting.words import leaderboard_markdown, leaderboard_with_sentences
    from oodml.study import load_study
    from oodml.study.leaderboard import leaderboard

    if output is not None and output.suffix not in (".json", ".md"):
        raise OodmlError(f"--out {output}: a leaderboard is written as .json or .md.")
    chosen = option.names_given(metrics)
    table = load_study(folder)
    if output is None and chosen is None:
        chosen = _headline(table.metrics)
    board = leaderboard(table, chosen)
    title = f"Leaderboard of {folder.rstrip('/').rpartition('/')[2]}"
    if output is None:
        _print_board(board)
        if others := [metric for metric in table.metrics if metric not in board["metrics"]]:
            out.print(f"Also measured (--metrics): {', '.join(others)}.", highlight=False, soft_wrap=True)
        return
    if output.suffix == ".md":
        text = leaderboard_markdown(board, title)
    else:
        text = json.dumps(leaderboard_with_sentences(board), indent=1, ensure_ascii=False)
    with atomic_file(output) as temporary:
        temporary.write_text(text + "\n" * (not text.endswith("\n")), encoding="utf-8")
    out.print(f"written to {output}", highlight=False, soft_wrap=True)


def _headline(metrics: list[str]) -> list[str]:
    """The metrics printed by default: recall at one gallery size, and as in the papers."""
    from oodml.study.leaderboard import METRIC

    return [metric for metric in (METRIC, "recall@1") if metric in metrics] or metrics


def _print_board(board: dict[str, Any]) -> None:
    """One table per metric, best first, with the means of the splits; a file holds their intervals too."""
    from oodml.reporting.words import percent, standing_sentences

    by, heads = split_heads(*([each[key] for each in board["splits"]] for key in ("name", "fid")))
    for metric, standing in board["metrics"].items():
        rows = []
        for row in standing["ranking"]:
            cells = [row["splits"].get(each["name"]) for each in board["splits"]]
            means = ["–" if cell is None else f"{100 * cell['mean']:.1f}" for cell in cells]
            rows.append([row["method"], percent(row["score"]), *means])
        print_table(f"{metric} in per cent, by {by}", ["method", standing["ranked_by"], *heads], rows)
        scored = [row["method"] for row in standing["ranking"] if row["kind"] != "trained"]
        words = [f"Not trained here: {', '.join(scored)}."] if scored else []
        for sentence in [*words, *standing_sentences(standing)]:
            out.print(sentence, highlight=False, soft_wrap=True)


@study_app.command("compare")
def compare_command(
    folder: str = FOLDER,
    table: str | None = typer.Option(None, help="A published table, e.g. oodml-s5; default: all that fit."),
) -> None:
    """Compare a study with the papers' numbers.

    Print ours, theirs, the difference and its 95 % interval.
    """
    from oodml.study import load_study
    from oodml.study.grid import load_settings
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
        differences = {each.differs for each in found}
        rows = [
            [
                each.row,
                each.place,
                each.theirs.metric,
                f"{100 * each.ours.mean:.2f}",
                f"{100 * each.theirs.value:.2f}",
                f"{100 * each.difference:+.2f}",
                "–" if each.agrees is None else f"{100 * each.low:+.2f} to {100 * each.high:+.2f}",
                *([each.differs] if len(differences) > 1 else []),  # what holds for all rows is said once below
            ]
            for each in found
        ]
        about = published_tables()[key]
        columns = ["method", "split", "metric", "ours", "theirs", "difference", "95 % interval", "not the same"]
        print_table(f"{about['paper']}: {about['table']}", columns[: len(rows[0])], rows)
        shared = f"Not the same: {differences.pop()}." if len(differences) == 1 and any(differences) else ""
        for note in filter(None, [shared, about.get("notes"), *reading_notes(study, found)]):
            out.print(note, highlight=False, soft_wrap=True)


@study_app.command("structure")
def structure_command(
    folder: str = FOLDER,
    base: str | None = typer.Option(None, help="A method: the others as relative change against it, in per cent."),
    side: str = typer.Option("train", help="Whose classes: train or test."),
) -> None:
    """Show how methods shape the embedding space.

    Print density and spectral decay per trained method, or their change against one (S2SD figure 2).
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
