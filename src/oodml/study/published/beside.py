"""A study of one's own beside the published numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from oodml._errors import OodmlError
from oodml.study.published.tables import Published, published, published_fids, published_tables
from oodml.study.statistics import Estimate, StudyTable


@dataclass(frozen=True)
class SideBySide:
    """Ours and theirs, and the difference with its 95 % interval (NaN where neither side has a spread)."""

    theirs: Published
    ours: Estimate
    difference: float
    low: float
    high: float

    @property
    def agrees(self) -> bool | None:
        """Whether no difference lies inside the interval; None without one."""
        return None if math.isnan(self.low) else self.low <= 0 <= self.high


def compare_with_published(table: StudyTable, dataset: str, published_table: str) -> list[SideBySide]:
    """Every number of a published table that the study has measured too: same data set, split, method and metric.

    Methods are matched by their label, whatever its case. A study's splits are matched by their name (`official-3`); a
    study of one split stands beside tables of the default split.
    """
    runs = int(published_tables().get(published_table, {}).get("runs") or 1)
    labels = {_plain(method): method for method in table.methods}
    found = []
    for theirs in published(published_table):
        method = labels.get(_plain(theirs.method))
        if theirs.dataset == dataset and method is not None and (ours := _ours(theirs, method, table)) is not None:
            found.append(_beside(theirs, ours, runs))
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
    """The published tables that share at least one number with a study."""
    keys = []
    for key in published_tables():
        try:
            compare_with_published(table, dataset, key)
        except OodmlError:
            continue
        keys.append(key)
    return keys


def _ours(theirs: Published, method: str, table: StudyTable) -> Estimate | None:
    """Our counterpart of a published number; an AGS only over exactly the splits of the benchmark."""
    if theirs.metric.startswith("ags:"):
        metric = theirs.metric.removeprefix("ags:")
        official = {f"official-{i}" for i in range(1, len(published_fids(theirs.dataset)) + 1)}
        return table.ags(metric).get(method) if metric in table.metrics and set(table.splits) == official else None
    split = _split(theirs.split, table)
    return table.cell(theirs.metric, method, split) if split and theirs.metric in table.metrics else None


def _split(theirs: str, table: StudyTable) -> str | None:
    if theirs in table.splits:
        return theirs
    return table.splits[0] if theirs == "default" and len(table.splits) == 1 else None


def _plain(label: str) -> str:
    return "".join(label.lower().split())


def _beside(theirs: Published, ours: Estimate, runs: int) -> SideBySide:
    """Welch's interval on the difference of the means; a side without a spread counts as exact."""
    difference = ours.mean - theirs.value
    parts = []
    if not math.isnan(ours.sd):
        parts.append((ours.sd**2 / ours.n, ours.n - 1))
    if theirs.spread and runs > 1:
        parts.append((theirs.spread**2 / runs, runs - 1))
    variance = sum(part for part, _ in parts)
    if not parts or variance == 0:
        return SideBySide(theirs, ours, difference, math.nan, math.nan)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    half = float(stats.t.ppf(0.975, freedom) * math.sqrt(variance))
    return SideBySide(theirs, ours, difference, difference - half, difference + half)
