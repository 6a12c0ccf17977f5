"""A study as a flat table for other programs: one row per run."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml._files import atomic_file
from oodml.study.grid import load_plan
from oodml.study.store import Store, open_store
from oodml.study.table import TRAINED, StudyTable

SETTINGS = (
    "backbone",
    "train",
    "embedding_dim",
    "batch_size",
    "samples_per_class",
    "lr",
    "steps",
    "epochs",
    "selection",
)


def export_rows(folder: str | Path | Store, table: StudyTable) -> list[dict[str, Any]]:
    """One flat dict per run: labels, settings, scores (`recall@1`), `untrained/…`, `selected/…` and others, structure.

    The scores without a prefix are those of the table: with selection "test" the maximum of each metric, where
    `maxima` is true; `selected/…` are all of the selected evaluation. Encoders that were not trained are at the end
    with the columns they have.
    """
    store = open_store(folder)
    trained = {(row.method, row.split, row.seed): row for row in table.rows if row.kind == TRAINED}
    rows: list[dict[str, Any]] = []
    for entry in load_plan(store):
        result, found = store.result(entry.id), trained.get((entry.method, entry.split, entry.seed))
        if result is None or found is None:  # a run may end after the table was read
            continue
        row: dict[str, Any] = {"run": entry.id, "kind": TRAINED, "method": entry.method, "split": entry.split}
        row |= {"fid": found.fid, "seed": entry.seed}
        row |= {name: result["config"].get(name) for name in SETTINGS}
        row |= {"seconds": result["seconds"], "selected_epoch": result["selected"]["epoch"]}
        row |= {"maxima": "maxima" in result}
        row |= dict(found.scores)
        for part, scores in (
            ("untrained", result["untrained"]),
            ("selected", result["selected"]["scores"]),
            ("last", result["last"]["scores"]),
            ("best_on_test", result["best_on_test"]["scores"]),
            *((f"structure.{side}", values) for side, values in result["structure"].items()),
        ):
            row |= {f"{part}/{name}": value for name, value in scores.items()}
        rows.append(row)
    for scored in table.rows:
        if scored.kind != TRAINED:
            about = {"run": "", "kind": scored.kind, "method": scored.method, "split": scored.split, "fid": scored.fid}
            rows.append({**about, **scored.scores})
    return rows


def write_export(rows: list[dict[str, Any]], path: str | Path) -> Path:
    """Write rows as .csv or .parquet, by the file's ending; a column that a row lacks stays empty."""
    path = Path(path)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        with atomic_file(path) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")
    elif path.suffix == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise OodmlError("Parquet needs pyarrow: pip install 'oodml[parquet]', or export to .csv.") from error
        table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
        with atomic_file(path) as temporary:
            pyarrow.parquet.write_table(table, temporary)
    else:
        raise OodmlError(f"Export writes .csv or .parquet, got {path.name!r}.")
    return path
