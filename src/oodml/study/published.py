"""The published numbers of the four papers, from the `tables.json` of their recipes, and a study next to them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation.estimate import Estimate
from oodml.recipes import tables
from oodml.study.load import few_shot_table, spaces_table
from oodml.study.store import Store
from oodml.study.table import TRAINED, UNTRAINED, StudyTable

UNTRAINED_IN_PAPERS = "ImageNet"  # the papers' name of the backbone before training

# Tables 4 and 9 of Sharing Matters: the two parts of the embedding, and both together.
_PARTS: Mapping[str, Sequence[str]] = {
    "Margin · class": ("Sharing · discriminative",),
    "Margin · shared": ("Sharing · shared",),
    "Margin · class + shared": ("Sharing",),
    **{
        f"{loss} · class": (f"{loss} · class + shared · discriminative",)
        for loss in ("Triplet (S)", "NPair", "ProxyNCA")
    },
    **{f"{loss} · shared": (f"{loss} · class + shared · shared",) for loss in ("Triplet (S)", "NPair", "ProxyNCA")},
}
LABELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "revisiting-s3": {"Margin": ("Margin β=1.2",)},
    "s2sd-10": {"2 Layers": ("R-KL",)},
    "s2sd-13": {"DSDA, TD=2048": ("R-KL",), "MSDA, #B=4": ("Straight",)},
    "s2sd-14": {"MSDA": ("Straight",)},
    "s2sd-15": {"DSDA, Detached": ("R-KL",), "MSDA, Detached": ("Straight",)},
    "sharing-4": {"Margin · baseline d256": ("Margin d256",), **_PARTS},
    "sharing-5": {"Margin · class": ("Margin · baseline d128",), "Sharing · class": ("Sharing · discriminative",)},
    "sharing-7": {"γ=0": ("both+sep",), "γ=500": ("both+sep+decor",), "both": ("Sharing (both)",)},
    "sharing-8": {
        "Base": ("discr. only",),
        "Sharing": ("both+sep+decor",),
        "Sharing · distance": ("both+sep+decor",),
    },
    "sharing-9": _PARTS,
}
# Protocols of the papers' tables. S2SD uses the set-up of Revisiting, and the numbers of its baselines.
_PROTOCOLS = {
    "oodml": ["oodml", "oodml-printed"],
    "revisiting": ["revisiting", "revisiting-printed", "s2sd", "s2sd-printed"],
    "s2sd": ["s2sd", "s2sd-printed", "revisiting", "revisiting-printed"],
    "sharing": ["sharing"],
}
_SIZE = re.compile(r"\bd ?=? ?(\d+)\b")  # the embedding size in a row's name


@dataclass(frozen=True)
class Published:
    """One number of a paper: its place, what was measured, the value as a fraction and what follows its ±."""

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
    """FID of the official splits of a dataset, in order of their ids."""
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


@dataclass(frozen=True)
class PublishedComparison:
    """Our score and the published one, and their difference with its 95 % interval.

    The interval is NaN where neither side has a spread, and where ours is one seed: it would hold only the papers'
    spread. `label` and `split` are the study's names, and `differs` lists the conditions that are not the same.
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
        """Whether the interval contains 0; None without an interval."""
        return None if math.isnan(self.low) else self.low <= 0 <= self.high

    @property
    def row(self) -> str:
        """The row's published name, with the study's own label where it is another one."""
        return self.theirs.method + _other(self.theirs.method, self.label)

    @property
    def place(self) -> str:
        """The published name of the split, with the study's own where it is another one."""
        return self.theirs.split + _other(self.theirs.split, self.split)


def compare_with_published(table: StudyTable, dataset: str, published_table: str) -> list[PublishedComparison]:
    """Every number of a published table that the study has measured too: same dataset, split, method and metric.

    Methods are matched by their label without regard to case, or by the other names of a row (`LABELS`); the papers'
    untrained network is the study's untrained backbone. Splits are matched by their classes where the table has them,
    else by their name: on CUB the default split is the published `official-3`.
    """
    about = published_tables().get(published_table, {})
    found = []
    for theirs in published(published_table):
        if theirs.dataset == dataset and (ours := _ours(theirs, table, about)) is not None:
            found.append(_compared(theirs, *ours, table, about))
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
    found = [table]
    for further in (few_shot_table, spaces_table):
        with contextlib.suppress(OodmlError):  # nothing of the kind was measured
            found.append(further(folder))
    return found


def reading_notes(table: StudyTable, found: list[PublishedComparison]) -> list[str]:
    """What a reader of the comparison must know."""
    notes = list(table.notes)
    chosen = {rule for row in table.rows if row.kind == TRAINED and (rule := row.about.get("selection"))} - {"test"}
    if chosen and any(published_tables()[each.theirs.table].get("selection") == "best test epoch" for each in found):
        names = " and ".join(sorted(chosen))
        notes.append(f"Selection here: {names}. The papers report the best epoch on the test classes.")
    if any(each.ours.n == 1 for each in found):
        notes.append("No interval where there is one seed: it would hold the spread of the papers' runs alone.")
    return notes


def _ours(theirs: Published, table: StudyTable, about: Mapping[str, Any]) -> tuple[Estimate, str, str] | None:
    """Our counterpart of a published number, with its label and split; an AGS only over the splits of the benchmark."""
    label = own_label(theirs.table, theirs.method, table.methods, about) or _untrained_here(theirs, table, about)
    if theirs.metric.startswith("ags:"):
        metric = theirs.metric.removeprefix("ags:")
        official = [table.split_named(f"official-{i}") for i in range(1, len(published_fids(theirs.dataset)) + 1)]
        if label is None or metric not in table.metrics or set(table.splits) != set(official):
            return None
        ranked = table.ags(metric)
        return (ranked[label], label, theirs.split) if label in ranked else None
    split = table.split_named(theirs.split)
    if split is None or label is None or theirs.metric not in table.metrics:
        return None
    cell = table.cell(theirs.metric, label, split)
    return None if cell is None else (cell, label, split)


def _untrained_here(theirs: Published, table: StudyTable, about: Mapping[str, Any]) -> str | None:
    """The study's untrained backbone, that of the published table where there are several."""
    if theirs.method != UNTRAINED_IN_PAPERS:
        return None
    found = {row.method: row.about.get("backbone") for row in table.rows if row.kind == UNTRAINED}
    same = [label for label, backbone in found.items() if backbone in _names_of_backbone(about)]
    return next(iter([*same, *found]), None)


def _names_of_backbone(about: Mapping[str, Any]) -> list[str]:
    backbone = about.get("backbone")
    return [backbone, f"{backbone}.tv_in1k"] if backbone else []


def _other(theirs: str, ours: str) -> str:
    return f" ({ours})" if ours and ours.lower() != theirs.lower() else ""


def _compared(
    theirs: Published, ours: Estimate, label: str, split: str, table: StudyTable, about: Mapping[str, Any]
) -> PublishedComparison:
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
    return PublishedComparison(theirs, ours, difference, low, high, label, split, _differs(theirs, label, table, about))


def _differs(theirs: Published, label: str, table: StudyTable, about: Mapping[str, Any]) -> str:
    """Which conditions of the study's runs are not those of the published row, as far as both are known."""
    rows = [row.about for row in table.rows if label == row.method]
    size = _SIZE.search(theirs.method)
    expected: dict[str, list[Any]] = {
        "embedding_dim": [int(size[1])] if size else [about["embedding_dim"]] if "embedding_dim" in about else [],
        "backbone": _names_of_backbone(about),
        "protocol": _PROTOCOLS.get(theirs.table.partition("-")[0], []),
    }
    if table.kinds[label] == UNTRAINED:  # the features as they are, without a head or training
        expected = {"backbone": expected["backbone"]}
    differences = []
    for name, known in expected.items():
        others = {row[name] for row in rows if row.get(name) is not None} - set(known)
        if known and others:
            differences.append(f"{name} {', '.join(sorted(map(str, others)))}, published {known[0]}")
    return "; ".join(differences)


def plain(label: str) -> str:
    """A label without regard to case and spaces."""
    return "".join(label.lower().split())


def own_label(table: str, row: str, labels: Sequence[str], about: Mapping[str, Any]) -> str | None:
    """The label of a study that belongs to a row of a published table; None where there is none.

    A paper prints one run under several names: the two layers of S2SD's table 10 are R-KL of its table 9. A study does
    such a run once, so `LABELS` lists the other labels of a row. A label may repeat a condition of the whole table,
    such as `ArcFace · resnet50` in a table about ResNet50.
    """
    found = {plain(_without(label, about)): label for label in labels} | {plain(label): label for label in labels}
    return next(
        (found[key] for each in (row, *LABELS.get(table, {}).get(row, ())) if (key := plain(each)) in found), None
    )


def _without(label: str, about: Mapping[str, Any]) -> str:
    """The label without the parts that repeat the conditions of a table."""
    repeated = {f"d{about.get('embedding_dim')}", *_names_of_backbone(about)}
    return " · ".join(part for part in label.split(" · ") if part not in repeated)
