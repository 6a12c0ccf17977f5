"""The published numbers of the four papers, from the `tables.json` of their recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oodml._errors import unknown_name
from oodml.recipes import tables


@dataclass(frozen=True)
class Published:
    """One number of a paper: where it stands, what was measured, the value as a fraction and what follows its ±."""

    table: str
    dataset: str
    split: str
    method: str
    metric: str
    value: float
    spread: float | None


def published_tables() -> Mapping[str, Mapping[str, Any]]:
    """Every table by its key (`oodml-s4`: supplement, table 4): paper, place, what it is about, conditions, cells."""
    return tables()["tables"]


def published_fids(dataset: str) -> list[float]:
    """FID of the official splits of a data set, in order of their ids."""
    return tables()["fids"][dataset]


def published(table: str) -> list[Published]:
    """The numbers of one table; scores as fractions, distances and seconds as printed."""
    if table not in published_tables():
        raise unknown_name("table", table, published_tables())
    return [
        Published(table, dataset, split, method, metric, _scaled(value, metric), _scaled(spread, metric))
        for dataset, split, method, metric, value, spread in published_tables()[table]["cells"]
    ]


def _scaled(value: float | None, metric: str) -> Any:
    return value if value is None or metric in ("fid", "retrieval seconds") else value / 100
