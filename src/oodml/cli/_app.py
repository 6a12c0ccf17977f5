"""The application object that the command files add to, the settings they are given and the tables they print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import oodml

app = typer.Typer(
    name="oodml",
    help="Train image embeddings, and measure how far they generalise to classes unlike the ones they saw.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console()  # results; progress and warnings go to stderr


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        out.print(oodml.__version__)
        raise typer.Exit


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """What `--set key=value` gave, the values read as YAML."""
    import yaml

    from oodml._errors import OodmlError

    found = {}
    for each in settings:
        key, equals, text = each.partition("=")
        if not equals:
            raise OodmlError(f"--set takes key=value, got {each!r}.")
        found[key] = yaml.safe_load(text)
    return found


def with_root(dataset: str | dict[str, Any], root: str) -> dict[str, Any]:
    """The settings of a data set with its place; its name and other options stay."""
    return {**(dataset if isinstance(dataset, dict) else {"name": dataset}), "root": root}


def chosen_dataset(dataset: str | None, root: str | None) -> dict[str, Any] | None:
    """What `--dataset` and `--root` say about another data set than a run's; None where they say nothing."""
    from oodml._errors import OodmlError

    if dataset is None:
        if root is not None:
            raise OodmlError("--root says where the pictures of --dataset are: give --dataset too.")
        return None
    return {"name": dataset} if root is None else with_root(dataset, root)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; every column after the first is right-aligned when its cells are numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    texts = [[str(cell) for cell in row] for row in rows]
    for i, column in enumerate(columns):
        numeric = bool(texts) and all(_is_number(row[i]) for row in texts)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=i == 0)
    for text in texts:
        table.add_row(*text)
    out.print(table)


def _is_number(text: str) -> bool:
    return text.strip("-+±%., ").replace(".", "").replace(",", "").replace(" ", "").replace("±", "").isdigit()
