"""`oodml methods`: list losses, miners, samplers and methods. `oodml tune`: search the options of one."""

from __future__ import annotations

import re
import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml.cli import _options as option
from oodml.cli._app import app, chosen_dataset, folder_given, out, parse_settings, parse_yaml, print_table

if TYPE_CHECKING:
    from oodml._registry import Record


@app.command("methods")
def methods_command(
    name: str | None = typer.Argument(None, help="One of them: describe it, with its options and their defaults."),
) -> None:
    """List or describe losses, miners, samplers, methods."""
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
        "Losses: a name is short for the method 'plain'", ["loss", "default miner", "trained", "what it does"], losses
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
    """A docstring in lines of at most `width`: paragraphs are filled, indented lines stay as they are.

    Formulas next to each other in one line that is too long get a line each.
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
    """Lines of an indented block; one that is indented deeper continues the line before it."""
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


@app.command("tune")
def tune_command(
    method: str = typer.Argument(help="A method's or a loss's name, or {name: rho, base: triplet}."),
    config: Path | None = typer.Option(
        None, callback=option.file_given, help="YAML file with the other settings of the run."
    ),
    dataset: str | None = option.OTHER_DATASET,
    root: Path | None = option.ROOT,
    folder: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Folder of the trials, default: search/METHOD. Rerun to resume.",
        callback=folder_given,
    ),
    trials: int = typer.Option(20, help="Number of runs to try."),
    metric: str = typer.Option("recall@1", help="The metric to maximise, on the validation classes."),
    setting: list[str] = typer.Option([], "--set", help="Any setting of the run as key=value."),
    quiet: bool = option.QUIET,
) -> None:
    """Search a method's options on validation classes.

    The test classes are never used. Needs Optuna (pip install optuna).
    """
    values = {**parse_settings(setting), "method": parse_yaml("METHOD", method)}
    if (other := chosen_dataset(dataset, root)) is not None:
        values["dataset"] = other

    import yaml

    from oodml.config import RunConfig
    from oodml.study.search import search, search_name

    run = RunConfig.load(config, **values) if config else RunConfig(**values)
    found = search(run, folder or Path("search") / search_name(values["method"]), trials, metric, quiet=quiet)
    best = sorted(found.trials, key=lambda trial: -trial[1])[:10]
    names = list(best[0][0])
    rows = [[f"{100 * score:.2f}", *(_option(options[name]) for name in names)] for options, score in best]
    print_table(f"Best trials: {metric} of the validation classes in per cent", [metric, *names], rows)
    out.print(yaml.safe_dump({"method": found.method}, sort_keys=False), highlight=False)


def _option(value: Any) -> str:
    """The value of an option, which may be a word."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
