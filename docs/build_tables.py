"""Write the tables of docs/losses.md from the registries' records: `python docs/build_tables.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from oodml._registry import Record
from oodml.losses import loss_records
from oodml.miners import miner_records

PAGE = Path(__file__).parent / "losses.md"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def options(record: Record) -> str:
    """`name=default` of every option; a number is shortened, a missing default is left out."""
    shown = (f"{v:.4g}" if isinstance(v, float) else repr(v) for v in record.defaults.values())
    return ", ".join(f"`{name}={value}`" for name, value in zip(record.defaults, shown, strict=True)) or "–"


def names(record: Record) -> str:
    return ", ".join(f"`{name}`" for name in (record.name, *record.aliases))


def ours(records: Iterable[Record], chosen: Collection[str] | None) -> list[Record]:
    """Without what plug-ins of this machine have added; `chosen`: of these names alone."""
    found = [r for r in records if r.factory.__module__.startswith("oodml.")]
    return [r for r in found if chosen is None or r.name in chosen]


def losses_table(chosen: Collection[str] | None = None) -> str:
    rows = [
        [names(r), r.summary, r.paper, r.default_miner or "–", "yes" if r.has_parameters else "–", options(r)]
        for r in ours(loss_records(), chosen)
    ]
    return markdown_table(["loss", "what it does", "paper", "miner", "learns", "options and defaults"], rows)


def miners_table(chosen: Collection[str] | None = None) -> str:
    rows = [[names(r), r.summary, r.paper, options(r)] for r in ours(miner_records(), chosen)]
    return markdown_table(["miner", "what it does", "paper", "options and defaults"], rows)


def fill(page: str, chosen: Collection[str] | None = None) -> str:
    """The page with the text between its table marks replaced; `chosen`: only rows of these names."""
    for mark, table in (("losses", losses_table(chosen)), ("miners", miners_table(chosen))):
        pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end {mark} -->)", re.DOTALL)
        page, count = pattern.subn(lambda m, table=table: f"{m[1]}\n{table}\n\n{m[2]}", page)
        if count != 1:
            raise SystemExit(f"losses.md should hold the marks of the table {mark!r} once, found {count}.")
    return page


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
