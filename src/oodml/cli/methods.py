"""`oodml methods`: what can be trained with, from the registries' own records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from oodml.cli._app import app, out, print_table

if TYPE_CHECKING:
    from oodml._registry import Record


@app.command("methods")
def methods_command(
    name: str | None = typer.Argument(None, help="One loss, miner or method, with its options and their defaults."),
) -> None:
    """List losses, miners and methods; with a name, its options."""
    from oodml._errors import unknown_name
    from oodml.losses import loss_records
    from oodml.methods import method_records
    from oodml.miners import miner_records

    kinds = {"method": method_records(), "loss": loss_records(), "miner": miner_records()}
    if name is not None:
        found = [(kind, r) for kind, records in kinds.items() for r in records if name in (r.name, *r.aliases)]
        if not found:
            raise unknown_name("method, loss or miner", name, [r.name for records in kinds.values() for r in records])
        for kind, record in found:
            _describe(kind, record)
        return
    print_table("Methods", ["method", "what it does"], [[r.name, escape(r.summary)] for r in kinds["method"]])
    losses = [
        [r.name, r.default_miner or "–", "yes" if r.has_parameters else "–", escape(r.summary)] for r in kinds["loss"]
    ]
    print_table(
        "Losses: a name is short for the method 'plain'", ["loss", "default miner", "learns", "what it does"], losses
    )
    print_table("Miners", ["miner", "what it does"], [[r.name, escape(r.summary)] for r in kinds["miner"]])


def _describe(kind: str, record: Record) -> None:
    import inspect

    out.print(f"{record.name} ({kind}){': ' + record.paper if record.paper else ''}", highlight=False)
    out.print(inspect.getdoc(record.factory) or record.summary, highlight=False, markup=False)
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
