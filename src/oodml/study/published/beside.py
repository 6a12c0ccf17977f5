"""A study of one's own beside the published numbers."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from oodml._errors import OodmlError
from oodml.study.published.labels import UNTRAINED, own_label
from oodml.study.published.tables import Published, published, published_fids, published_tables
from oodml.study.statistics import TRAINED, Estimate, StudyTable, estimate
from oodml.study.store import Store

UNTRAINED_HERE = "untrained"
# What a paper's tables were trained with. S2SD takes over the set-up of Revisiting, and its baselines' numbers.
_PROTOCOLS = {
    "oodml": ["oodml", "oodml-printed"],
    "revisiting": ["revisiting", "revisiting-printed", "s2sd", "s2sd-printed"],
    "s2sd": ["s2sd", "s2sd-printed", "revisiting", "revisiting-printed"],
    "sharing": ["sharing"],
}
_SIZE = re.compile(r"\bd ?=? ?(\d+)\b")  # the embedding size that a row's own name says


@dataclass(frozen=True)
class SideBySide:
    """Ours and theirs, and the difference with its 95 % interval.

    The interval is NaN where neither side has a spread, and where ours is one seed: it would hold the papers' spread
    alone. `label` is what the study calls the row, `split` the split, and `differs` says which conditions are others.
    """

    theirs: Published
    ours: Estimate
    difference: float
    low: float
    high: float
    label: str = ""
    split: str = ""
    differs: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether no difference lies inside the interval; None without one."""
        return None if math.isnan(self.low) else self.low <= 0 <= self.high

    @property
    def row(self) -> str:
        """The row's published name, with the study's own label where that is another."""
        return self.theirs.method + _other(self.theirs.method, self.label)

    @property
    def place(self) -> str:
        """The published name of the split, with the study's own where that is another."""
        return self.theirs.split + _other(self.theirs.split, self.split)


def compare_with_published(table: StudyTable, dataset: str, published_table: str) -> list[SideBySide]:
    """Every number of a published table that the study has measured too: same data set, split, method and metric.

    Methods are matched by their label, whatever its case, or by one that stands for the row (`published.labels`); the
    papers' untrained network is the study's untrained backbone. Splits are matched by their classes where the table
    knows them, else by their name: on CUB the default split is the published `official-3`.
    """
    about = published_tables().get(published_table, {})
    found = []
    for theirs in published(published_table):
        if theirs.dataset == dataset and (place := _ours(theirs, table, about)) is not None:
            found.append(_beside(theirs, *place, table, about))
    if not found:
        raise OodmlError(
            f"The study and the table {published_table!r} share no number: the table is about "
            f"{', '.join(sorted({p.dataset for p in published(published_table)}))} with the methods "
            f"{', '.join(sorted({p.method for p in published(published_table)}))} and the metrics "
            f"{', '.join(sorted({p.metric for p in published(published_table)}))}; the study is about {dataset} with "
            f"{', '.join(table.methods)} and {', '.join(table.metrics)}."
        )
    return found


def matching_tables(table: StudyTable, dataset: str) -> list[str]:
    """The published tables that share at least one number with a study, first those of the same conditions."""
    keys = {}
    for key in published_tables():
        with contextlib.suppress(OodmlError):  # they share none
            keys[key] = all(each.differs for each in compare_with_published(table, dataset, key))
    return sorted(keys, key=lambda key: keys[key])


def comparable_tables(table: StudyTable, folder: str | Path | Store) -> list[StudyTable]:
    """The table of a study and, where its folder has them, those of few-shot adaptation and of parts of embeddings."""
    from oodml.study.follow import few_shot_table  # they load training, which the published numbers do not need
    from oodml.study.results import spaces_table

    found = [table]
    for further in (few_shot_table, spaces_table):
        with contextlib.suppress(OodmlError):  # nothing of the kind was measured
            found.append(further(folder))
    return found


def reading_notes(table: StudyTable, found: list[SideBySide]) -> list[str]:
    """What a reader of the comparison must know."""
    told = list(table.notes)
    chosen = {rule for row in table.rows if row.kind == TRAINED and (rule := row.about.get("selection"))} - {"test"}
    if chosen and any(published_tables()[each.theirs.table].get("selection") == "best test epoch" for each in found):
        names = " and ".join(sorted(chosen))
        told.append(f"Selection here: {names}. The papers report the best epoch on the test classes.")
    if any(each.ours.n == 1 for each in found):
        told.append("No interval where there is one seed: it would hold the spread of the papers' runs alone.")
    return told


def _ours(theirs: Published, table: StudyTable, about: Mapping[str, Any]) -> tuple[Estimate, str, str] | None:
    """Our counterpart of a published number, with its label and split; an AGS only over the splits of the benchmark."""
    label = own_label(theirs.table, theirs.method, table.methods, about)
    if theirs.metric.startswith("ags:"):
        metric = theirs.metric.removeprefix("ags:")
        official = [table.split_named(f"official-{i}") for i in range(1, len(published_fids(theirs.dataset)) + 1)]
        if label is None or metric not in table.metrics or set(table.splits) != set(official):
            return None
        ranked = table.ags(metric)
        return (ranked[label], label, theirs.split) if label in ranked else None
    split = table.split_named(theirs.split)
    if split is None or theirs.metric not in table.metrics:
        return None
    if label is not None:
        cell = table.cell(theirs.metric, label, split)
        return None if cell is None else (cell, label, split)
    value = float(table.untrained(theirs.metric)[table.splits.index(split)])
    if theirs.method != UNTRAINED or math.isnan(value):
        return None
    return estimate([value]), UNTRAINED_HERE, split


def _other(theirs: str, ours: str) -> str:
    return f" ({ours})" if ours and ours.lower() != theirs.lower() else ""


def _beside(
    theirs: Published, ours: Estimate, label: str, split: str, table: StudyTable, about: Mapping[str, Any]
) -> SideBySide:
    """Welch's interval on the difference of the means; a published mean without a spread counts as exact."""
    runs = int(about.get("runs") or 1)
    difference = ours.mean - theirs.value
    low = high = math.nan
    parts = [(ours.sd**2 / ours.n, ours.n - 1)] if ours.n > 1 else []
    if theirs.spread and runs > 1:
        parts.append((theirs.spread**2 / runs, runs - 1))
    variance = sum(part for part, _ in parts)
    if ours.n > 1 and variance > 0:
        freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
        half = float(stats.t.ppf(0.975, freedom) * math.sqrt(variance))
        low, high = difference - half, difference + half
    return SideBySide(theirs, ours, difference, low, high, label, split, _differs(theirs, label, table, about))


def _differs(theirs: Published, label: str, table: StudyTable, about: Mapping[str, Any]) -> str:
    """Which conditions of the study's runs are not those of the published row, as far as both are known."""
    rows = [row.about for row in table.rows if label in (row.method, UNTRAINED_HERE)]
    size, backbone = _SIZE.search(theirs.method), about.get("backbone")
    expected: dict[str, list[Any]] = {
        "embedding_dim": [int(size[1])] if size else [about["embedding_dim"]] if "embedding_dim" in about else [],
        "backbone": [backbone, f"{backbone}.tv_in1k"] if backbone else [],
        "protocol": _PROTOCOLS.get(theirs.table.partition("-")[0], []),
    }
    if label == UNTRAINED_HERE:  # the features as they are, without a head or training
        expected = {"backbone": expected["backbone"]}
    told = []
    for name, known in expected.items():
        others = {row[name] for row in rows if row.get(name) is not None} - set(known)
        if known and others:
            told.append(f"{name} {', '.join(sorted(map(str, others)))}, published {known[0]}")
    return "; ".join(told)
