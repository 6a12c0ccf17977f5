"""Write the tables of the pages in docs/ from the registries' records: `python docs/build_tables.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from oodml._registry import Record
from oodml.data import batch_sampler_records, dataset_records
from oodml.losses import loss_records
from oodml.methods import method_records
from oodml.miners import miner_records
from oodml.models.backbones import backbone_records

DOCS = Path(__file__).parent


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def options(record: Record) -> str:
    """`name=default` of every option, numbers shortened; `name` alone for one without a default."""
    return ", ".join(f"`{name}{_default(value)}`" for name, value in record.defaults.items()) or "–"


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f"={value:.4g}" if isinstance(value, float) else f"={value!r}"


def names(record: Record) -> str:
    return ", ".join(f"`{name}`" for name in (record.name, *record.aliases))


def ours(records: Iterable[Record], chosen: Collection[str] | None) -> list[Record]:
    """Without what plug-ins of this machine have added; `chosen`: of these names alone."""
    found = [r for r in records if getattr(r.factory, "func", r.factory).__module__.startswith("oodml.")]
    return [r for r in found if chosen is None or r.name in chosen]


def losses_table(chosen: Collection[str] | None = None) -> str:
    rows = [
        [names(r), r.summary, r.paper, r.default_miner or "–", "yes" if r.has_parameters else "–", options(r)]
        for r in ours(loss_records(), chosen)
    ]
    return markdown_table(["loss", "what it does", "paper", "miner", "learns", "options and defaults"], rows)


def table(kind: str, records: Callable[[], list[Record]], chosen: Collection[str] | None) -> str:
    rows = [[names(r), r.summary, r.paper or "–", options(r)] for r in ours(records(), chosen)]
    return markdown_table([kind, "what it does", "paper", "options and defaults"], rows)


TABLES: dict[str, dict[str, Callable[[Collection[str] | None], str]]] = {
    "losses.md": {"losses": losses_table, "miners": partial(table, "miner", miner_records)},
    "methods.md": {"methods": partial(table, "method", method_records)},
    "datasets.md": {
        "datasets": partial(table, "dataset", dataset_records),
        "samplers": partial(table, "sampler", batch_sampler_records),
    },
    "models.md": {"backbones": partial(table, "backbone", backbone_records)},
}


def fill(page: str, chosen: Collection[str] | None = None, name: str = "losses.md") -> str:
    """The page `name` with the text between its table marks replaced; `chosen`: only rows of these names."""
    for mark, make in TABLES[name].items():
        pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end {mark} -->)", re.DOTALL)
        page, count = pattern.subn(lambda m, text=make(chosen): f"{m[1]}\n{text}\n\n{m[2]}", page)
        if count != 1:
            raise SystemExit(f"{name} should contain the marks of the table {mark!r} once, found {count}.")
    return page


if __name__ == "__main__":
    for name in TABLES:
        path = DOCS / name
        path.write_text(fill(path.read_text(encoding="utf-8"), name=name), encoding="utf-8")
