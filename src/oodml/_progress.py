"""The console, and progress bars with an ETA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

T = TypeVar("T")
# Results go to stdout, progress and warnings to stderr. Brackets and colons, which occur in names of files and classes,
# are not markup or emoji.
console = Console(stderr=True, markup=False, emoji=False)


class _Description(TextColumn):
    """The only column that is shortened on a narrow terminal."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def tell(kind: str, text: str, style: str = "dim") -> None:
    """Print a sentence to stderr, after a coloured word such as `note` or `error`."""
    console.print(Text.assemble((kind, style), " ", text), highlight=False, soft_wrap=True)


def progress_bar() -> Progress:
    """A rich bar: description, share done, count, time spent, time left."""
    return Progress(
        _Description("{task.description:<28}", markup=False, table_column=Column()),
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("eta"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
    )


def track(items: Iterable[T], description: str, total: int | None = None, quiet: bool = False) -> Iterator[T]:
    """Iterate over `items` with a bar; `quiet` gives the items alone."""
    if quiet:
        yield from items
        return
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)


@contextmanager
def stage(description: str, total: int, quiet: bool = False) -> Iterator:
    """A bar that the body advances: `with stage("Decoding", n) as advance: ...; advance(1)`."""
    if quiet:
        yield lambda count=1: None
        return
    with progress_bar() as bar:
        task = bar.add_task(description, total=total)
        yield lambda count=1: bar.advance(task, count)
