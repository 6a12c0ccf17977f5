"""`oodml study score`, `forecast` and `leaderboard`: encoders of one's own, other pictures, where everything stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from oodml._errors import OodmlError
from oodml.cli._app import folder_given, out, print_table
from oodml.cli.study import study_app

STUDY = typer.Argument(help="The study's folder.", callback=folder_given)


@study_app.command("score")
def score_command(
    folder: str = STUDY,
    encoder: str = typer.Argument(
        help="module:function from a list of PIL images to vectors; a folder with one SPLIT.npz a split; or one .npz "
        "with the embeddings of all pictures."
    ),
    label: str = typer.Option(..., "--name", help="The encoder's name in the table."),
    kind: str = typer.Option("own", help="own, or generic for published weights."),
    normalise: bool = typer.Option(False, help="Divide each vector by its norm first."),
    batch_size: int = typer.Option(64, min=1, help="Pictures a call of the function."),
    quiet: bool = typer.Option(False, help="No progress bar."),
) -> None:
    """Score an encoder of your own on every split.

    It enters the study's table and ranking.
    """
    from oodml.study import load_study
    from oodml.study.encoders import score_study
    from oodml.study.results import METRIC, ranking

    found = score_study(folder, label, encoder, kind=kind, normalise=normalise, batch_size=batch_size, quiet=quiet)
    shown = ["recall@1", METRIC, "map@r", "nmi"]
    rows = [
        [split, *[f"{100 * scores[m]:.1f}" if m in scores else "–" for m in shown]]
        for split, scores in found["splits"].items()
    ]
    print_table(f"{label} in per cent", ["split", *shown], rows)
    table = load_study(folder)
    ranked = list(ranking(table, METRIC if METRIC in table.metrics else "recall@1"))
    if label in ranked:
        told = f"{label} is number {ranked.index(label) + 1} of {len(ranked)} by recall@1 over the shift."
        out.print(told, highlight=False, soft_wrap=True)


@study_app.command("forecast")
def forecast_command(
    folder: str = STUDY,
    target: str = typer.Argument(help="Pictures it will be used on: a folder, with or without class folders."),
    method: str = typer.Option(None, help="Of the study; default: its best."),
    backbone: str = typer.Option("tf_efficientnet_lite0", help="Network whose features measure the shift."),
    quiet: bool = typer.Option(False, help="No progress bars."),
) -> None:
    """Say what recall to expect on other pictures.

    It is read off the study's curve at their shift.
    """
    from oodml.cli._inputs import open_unlabelled, quietly
    from oodml.study.audit import forecast_target, target_words

    name = Path(target).resolve().name
    placed, held = quietly(forecast_target, folder, open_unlabelled(target), name, backbone, method, quiet)
    for sentence in [f"Forecast for {held['method']}.", *target_words(placed, held, tuple(held["gallery"]))]:
        out.print(sentence, highlight=False, soft_wrap=True)


@study_app.command("leaderboard")
def leaderboard_command(
    folder: str = STUDY,
    output: Path = typer.Option(None, "--out", help="A .json or .md file; without, tables are printed."),
    metrics: str = typer.Option("", help="Comma-separated names; default: recall@1 in a terminal, all in a file."),
) -> None:
    """Write the ranking of all methods and encoders.

    With what can be told apart.
    """
    from oodml._files import atomic_file
    from oodml.study import load_study
    from oodml.study.results import as_markdown, leaderboard

    if output is not None and output.suffix not in (".json", ".md"):
        raise OodmlError(f"--out {output}: a leaderboard is written as .json or .md.")
    chosen = [name.strip() for name in metrics.split(",")] if metrics else None
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
    text = as_markdown(board, title) if output.suffix == ".md" else json.dumps(board, indent=1, ensure_ascii=False)
    with atomic_file(output) as temporary:
        temporary.write_text(text + "\n" * (not text.endswith("\n")), encoding="utf-8")
    out.print(f"written to {output}", highlight=False, soft_wrap=True)


def _headline(metrics: list[str]) -> list[str]:
    """What a terminal shows unless asked for more: recall at one gallery size and as the papers have it."""
    from oodml.study.results import METRIC

    return [metric for metric in (METRIC, "recall@1") if metric in metrics] or metrics


def _print_board(board: dict[str, Any]) -> None:
    """One table a metric, best first. A terminal has room for means of the splits; a file holds their intervals too."""
    from oodml.cli.study import split_heads
    from oodml.study.results import percent, standing_words

    by, heads = split_heads(*([each[key] for each in board["splits"]] for key in ("name", "fid")))
    for metric, standing in board["metrics"].items():
        rows = []
        for row in standing["ranking"]:
            cells = [row["splits"].get(each["name"]) for each in board["splits"]]
            means = ["–" if cell is None else f"{100 * cell['mean']:.1f}" for cell in cells]
            rows.append([row["method"], percent(row["score"]), *means])
        print_table(f"{metric} in per cent, by {by}", ["method", standing["ranked_by"], *heads], rows)
        scored = [f"{row['method']} ({row['kind']})" for row in standing["ranking"] if row["kind"] != "trained"]
        words = [f"Not trained here: {', '.join(scored)}."] if scored else []
        for sentence in [*words, *standing_words(standing)]:
            out.print(sentence, highlight=False, soft_wrap=True)
