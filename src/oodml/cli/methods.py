"""`oodml methods`: what can be trained with, from the registries' own records."""

from __future__ import annotations

import re
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

import typer

from oodml.cli._app import app, out, print_table

if TYPE_CHECKING:
    from oodml._registry import Record


@app.command("methods")
def methods_command(
    name: str | None = typer.Argument(None, help="One of them, with its options and their defaults."),
) -> None:
    """List losses, miners, samplers and methods, or explain one."""
    from oodml._errors import unknown_name
    from oodml.data import batch_sampler_records
    from oodml.losses import loss_records
    from oodml.methods import method_records
    from oodml.miners import miner_records

    kinds = {
        "method": method_records(),
        "loss": loss_records(),
        "miner": miner_records(),
        "batch sampler": batch_sampler_records(),
    }
    if name is not None:
        found = [(kind, r) for kind, records in kinds.items() for r in records if name in (r.name, *r.aliases)]
        if not found:
            known = [each for records in kinds.values() for r in records for each in (r.name, *r.aliases)]
            raise unknown_name("method, loss, miner or batch sampler", name, known)
        for kind, record in found:
            _describe(kind, record)
        return
    print_table("Methods", ["method", "what it does"], [[r.name, r.summary] for r in kinds["method"]])
    losses = [
        [", ".join((r.name, *r.aliases)), r.default_miner or "–", "yes" if r.has_parameters else "–", r.summary]
        for r in kinds["loss"]
    ]
    print_table(
        "Losses: a name is short for the method 'plain'", ["loss", "default miner", "learns", "what it does"], losses
    )
    print_table("Miners", ["miner", "what it does"], [[r.name, r.summary] for r in kinds["miner"]])
    print_table("Batch samplers", ["sampler", "what it does"], [[r.name, r.summary] for r in kinds["batch sampler"]])


def _describe(kind: str, record: Record) -> None:
    import inspect

    heading = f"{record.name} ({kind}){': ' + record.paper if record.paper else ''}"
    text = f"{heading}\n\n{inspect.getdoc(record.factory) or record.summary}"
    out.print(reflow(text, min(out.width, 100)) + "\n", highlight=False)
    missing = inspect.Parameter.empty
    rows = [
        [
            option,
            "required" if default is missing else repr(default),
            " – ".join(map(str, record.search.get(option, ()))),
        ]
        for option, default in record.defaults.items()
    ]
    if rows:
        print_table("Options", ["option", "default", "sensible range"], rows)


def reflow(text: str, width: int) -> str:
    """A docstring in lines of at most `width`: paragraphs are filled, indented lines keep their place.

    Formulas that stand side by side in one line, far apart, get a line each where they do not fit.
    """
    lines: list[str] = []
    for indented, group in groupby(text.splitlines(), lambda line: line[:1] == " " if line else None):
        block = list(group)
        if indented is None:
            lines += block
        elif not indented:
            lines += textwrap.wrap(" ".join(block), width, break_on_hyphens=False)
        else:
            for line in _joined(block):
                lines += _wrap_indented(line, width)
    return "\n".join(lines)


def _joined(block: list[str]) -> list[str]:
    """Lines of an indented block; one that stands deeper than the one before it goes on with that one's sentence."""
    found = block[:1]
    for line in block[1:]:
        if _indent(line) > _indent(found[-1]):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _wrap_indented(line: str, width: int) -> list[str]:
    indent = " " * _indent(line)
    parts = [line.strip()] if len(line) <= width else re.split(r" {3,}", line.strip())
    wrapped = (
        textwrap.wrap(part, width, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False)
        for part in parts
    )
    return [each for part in wrapped for each in part]
