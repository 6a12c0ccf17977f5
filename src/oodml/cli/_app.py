"""The application that the command files add to, the parsing of their options and the tables they print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table

import oodml
from oodml._progress import tell

app = typer.Typer(
    name="oodml",
    help="Train image embeddings, and measure how far they generalise to classes unlike the ones they saw.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console(markup=False, emoji=False)  # results; progress and warnings go to stderr


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        out.print(oodml.__version__)
        raise typer.Exit


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """The settings of `--set key=value`, with values read as YAML."""
    from oodml._errors import OodmlError

    found = {}
    for each in settings:
        key, equals, text = each.partition("=")
        if not equals:
            raise OodmlError(f"--set takes key=value, got {each!r}.")
        found[key] = parse_yaml(f"--set {key}", text)
    return found


def parse_yaml(option: str, text: str) -> Any:
    """The value of an option or argument, read as YAML."""
    import yaml

    from oodml._errors import OodmlError

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a date of month 99 is a ValueError
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise OodmlError(
            f"{option}: {text!r} is not YAML ({problem}). Lists are [a, b], mappings {{key: value}}."
        ) from None


def parse_integers(option: str, text: str) -> list[int]:
    """The whole numbers of an option, separated by commas."""
    from oodml._errors import OodmlError

    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise OodmlError(f"{option} {text!r}: give whole numbers separated by commas, for example 1,10,100.") from None


def folder_given(place: Any) -> Any:
    """For a folder (or the URL of a store): raise if it is a file."""
    from oodml._errors import OodmlError
    from oodml._files import file_in_the_way

    if place is not None and "://" not in str(place) and (file := file_in_the_way(Path(place))):
        raise OodmlError(f"{file} is a file; give a folder.")
    return place


def with_root(dataset: str | dict[str, Any], root: str) -> dict[str, Any]:
    """The settings of a dataset with its root; its name and other options stay."""
    return {**(dataset if isinstance(dataset, dict) else {"name": dataset}), "root": root}


def chosen_dataset(dataset: str | None, root: str | Path | None) -> dict[str, Any] | None:
    """The settings of the dataset of `--dataset` and `--root`; None without them."""
    from oodml._errors import OodmlError

    if dataset is None:
        if root is not None:
            raise OodmlError("--root says where the images of --dataset are: give --dataset too.")
        return None
    from oodml.data import dataset_spec

    spec = dataset_spec(dataset, root)
    if "root" in spec and not Path(spec["root"]).expanduser().exists():
        raise OodmlError(f"No folder or tar at {spec['root']}: check the path.")
    return spec


@contextmanager
def resumable() -> Iterator[None]:
    """Around work that the same command resumes: report so when it is stopped."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        tell("stopped", "Run the same command to resume.")
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None


def method_name(method: Any) -> str:
    """The name of a method for a reader; of one loss alone it is the name of the loss."""
    from oodml.methods import method_spec

    spec = method_spec(method or "margin")
    loss = spec.get("loss", "margin") if spec["name"] == "plain" else spec["name"]
    return loss if isinstance(loss, str) else loss["name"]


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns of numbers are right-aligned, and where it is wider than the terminal, words are folded.

    A number is never broken or cut; a word of a heading only where the columns do not fit otherwise. The first column
    is folded only next to another column of text, or between its words where nothing else makes the table fit.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    unbounded = out.options.update(max_width=10_000)  # a measure within the terminal would always fit
    # The columns move together before a heading is broken.
    for whole_words, padding, whole_names in ((True, 1, True), (True, 0, True), (False, 1, True), (False, 0, False)):
        table = _table(title, columns, texts, whole_words, padding, whole_names)
        if Measurement.get(out, unbounded, table).minimum <= out.width:
            break
    out.print(table, crop=False)


def _table(
    title: str, columns: Sequence[str], texts: list[list[str]], whole_words: bool, padding: int, whole_names: bool
) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, padding),
        show_edge=whole_names,
    )
    numeric = [_are_numbers([row[i] for row in texts]) for i in range(len(columns))]
    for i, column in enumerate(columns):
        # Not no_wrap for numbers: that would keep a long heading on one line too.
        whole = i == 0 and all(numeric[1:])
        width = max(len(row[i]) for row in texts) if texts and (whole or numeric[i]) else 1
        if whole_words:
            width = max([width, *map(len, column.split())])
        if whole and not whole_names:
            whole, width = False, max((len(word) for row in texts for word in row[0].split()), default=1)
        justify: JustifyMethod = "right" if numeric[i] else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=whole, min_width=width)
    for text in texts:
        table.add_row(*text)
    return table


def _are_numbers(texts: Sequence[str]) -> bool:
    """Whether a column holds numbers; a dash is a missing one."""
    return bool(texts) and all(text == "–" or _is_number(text) for text in texts)


def _is_number(text: str) -> bool:
    """Also with its interval: `85.0 ± 1.2`, `97.2 [84.9–100.0]`."""
    return text.strip("-+±%., ").translate(dict.fromkeys(map(ord, "., ±[–]"))).isdigit()
