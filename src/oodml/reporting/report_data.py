"""The data of a report: the table of a study, and the other files of its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError
from oodml.evaluation import MATCHED
from oodml.study.store import Store
from oodml.study.table import EXTERNAL, TRAINED, Row, StudyTable

RUN_FILES = ("result.json", "metrics.jsonl", "few_shot.json")  # read of each run, in addition to its embeddings
HEADLINE = (MATCHED, "recall@1")  # the first that a study has; only recall at one gallery size compares splits


@dataclass(frozen=True)
class Failure:
    """A run that failed, in its training or in the adaptation after it, and why."""

    run: str
    traceback: str

    @property
    def reason(self) -> str:
        return self.traceback.strip().splitlines()[-1] if self.traceback.strip() else "no reason was recorded"


@dataclass(frozen=True)
class ReportData:
    """A study as the report reads it. `metric` is that of the sentences, bars and first views."""

    table: StudyTable
    store: Store | None
    metric: str
    title: str
    results: dict[Path, dict[str, Any]] = field(repr=False)

    @property
    def trained(self) -> list[str]:
        """Methods with runs behind them, in the order of the table."""
        return self.table.trained

    @cached_property
    def scored(self) -> dict[str, str]:
        """Encoders without training here: label to kind, "untrained" or "external"."""
        return {method: kind for method, kind in self.table.kinds.items() if kind != TRAINED}

    @cached_property
    def external(self) -> list[str]:
        """Encoders other than the untrained backbone that were only scored."""
        return [method for method, kind in self.table.kinds.items() if kind == EXTERNAL]

    @cached_property
    def metrics(self) -> list[str]:
        """The headline metric first, then the others as the table has them."""
        return [self.metric, *(metric for metric in self.table.metrics if metric != self.metric)]

    def style(self, method: str) -> int:
        """A method keeps its colour in every chart."""
        return self.table.methods.index(method)

    def rows(self, method: str | None = None, split: str | None = None) -> Iterator[Row]:
        for row in self.table.rows:
            if method in (None, row.method) and split in (None, row.split):
                yield row

    def result(self, row: Row) -> dict[str, Any]:
        """What the run behind a row wrote; empty for a row without a folder."""
        return self.results.get(row.path, {}) if row.path else {}

    def json(self, name: str) -> Any:
        """An optional file of the study; None where it is absent."""
        return self.store.read_json(name) if self.store else None

    @cached_property
    def failures(self) -> list[Failure]:
        names = self.store.names("runs") if self.store else []
        found = {name: self.store.failure(name) for name in names} if self.store else {}
        return [Failure(name, traceback) for name, traceback in found.items() if traceback is not None]


def read_report_data(table: StudyTable, store: Store | None, metric: str | None, title: str | None) -> ReportData:
    """Read what the runs of a table wrote; the study's folder is found from the runs when it is not given."""
    paths = [row.path for row in table.rows if row.path is not None]
    if store is None and paths and paths[0].parent.name == "runs":
        store = Store(paths[0].parent.parent)
    if store is not None:
        for path in paths:
            store.fetch(path.name, RUN_FILES)
    results = {path: read_json(path / "result.json") for path in paths if (path / "result.json").exists()}
    chosen = metric or next((name for name in HEADLINE if name in table.metrics), table.metrics[0])
    table = StudyTable((_with_structure(row, results) for row in table.rows), table.missing, table.known_as)
    table.scores(chosen)  # an unknown name is refused here, with the known ones listed
    return ReportData(table, store, chosen, title or _title(results, table.shifts > 1), results)


def _with_structure(row: Row, results: dict[Path, dict[str, Any]]) -> Row:
    found = results.get(row.path, {}).get("structure") if row.path and not row.structure else None
    return replace(row, structure=found) if found else row


def _title(results: dict[Path, dict[str, Any]], rising: bool) -> str:
    names = list(dict.fromkeys(_set_name(result) for result in results.values() if "dataset" in result))
    return f"{' and '.join(names)}{' under rising shift' if rising else ': methods compared'}" if names else "Study"


def _set_name(result: dict[str, Any]) -> str:
    """The name of a dataset; of a folder of images, the folder's name."""
    spec = result.get("config", {}).get("dataset")
    root = spec.get("root") if isinstance(spec, dict) else None
    return Path(root).name if root and spec["name"] == "folder" else result["dataset"]["name"]


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise OodmlError(f"{path} cannot be read ({error}). Remove it, or run the study again.") from error


def mean_sd(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation over the last axis, leaving out NaN; NaN where nothing (or one value) is left."""
    n = (~np.isnan(values)).sum(axis=-1)
    filled = np.where(np.isnan(values), 0.0, values)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(axis=-1) / n
        squares = np.where(np.isnan(values), 0.0, (values - mean[..., None]) ** 2).sum(axis=-1)
        sd = np.sqrt(squares / (n - 1))
    return np.where(n > 0, mean, np.nan), np.where(n > 1, sd, np.nan)
