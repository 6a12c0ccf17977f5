"""Progress bars with an ETA, one look for every stage."""

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
# Results go to stdout, progress and warnings to stderr. To no console are brackets and colons, which names of files and
# classes may hold, markup or emoji.
console = Console(stderr=True, markup=False, emoji=False)


class _Description(TextColumn):
    """What gives way on a narrow terminal: it is cut, and count and times stay whole."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def tell(kind: str, text: str, style: str = "dim") -> None:
    """A sentence on stderr after a word in colour that says of which kind it is: a note, an error."""
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
    """A bar that the body advances itself: `with stage("Decoding", n) as advance: ...; advance(1)`."""
    if quiet:
        yield lambda count=1: None
        return
    with progress_bar() as bar:
        task = bar.add_task(description, total=total)
        yield lambda count=1: bar.advance(task, count)
