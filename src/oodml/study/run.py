"""Run a study: splits, then every missing run of the grid, then the table."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from oodml._errors import OodmlError
from oodml._progress import console, progress_bar
from oodml.data import Dataset, load_dataset
from oodml.models import extract_features
from oodml.shift import Split, build_splits, load_splits, save_splits
from oodml.study.config import BuildSplits, PlannedRun, StudyConfig, plan
from oodml.study.matched import matched_recall, smallest_test_set
from oodml.study.store import Store
from oodml.study.table import Row, StudyTable
from oodml.training import train
from oodml.training.sets import choose_split


def run_study(study: StudyConfig, out: str | Path, quiet: bool = False) -> StudyTable:
    """Do what is missing of the study in the folder `out`, and read all of it.

    Started again, it goes on: finished runs are re-used, an interrupted run resumes from its checkpoint, a failed one
    is tried again. A run that fails is recorded with its traceback and does not stop the others.
    """
    store = Store(out)
    dataset = load_dataset(study.dataset)
    splits = choose_splits(study, dataset, store, quiet)
    planned = plan(study, splits)
    run_missing(planned, store, quiet)
    return read_study(planned, dataset, store)


def run_missing(planned: list[PlannedRun], store: Store, quiet: bool = False) -> None:
    """Train what has no result yet: one run at a time on a GPU, one a core on a CPU.

    On a CPU a run is given one thread: small batches gain little from more, and runs side by side gain it all.
    """
    missing = [run for run in planned if store.result(run.id) is None]
    with progress_bar() as bar:
        bar.disable = quiet
        task = bar.add_task("Training", total=len(planned), completed=len(planned) - len(missing))
        for run in _side_by_side(missing, store):
            bar.update(task, description=f"Trained {run.method} on {run.split.name}", advance=1)


def _side_by_side(runs: list[PlannedRun], store: Store) -> Iterator[PlannedRun]:
    """Execute the runs and give each back when it is done."""
    workers = min(len(runs), os.cpu_count() or 1)
    on_gpu = torch.cuda.is_available() and any(run.config.device != "cpu" for run in runs)
    if workers < 2 or on_gpu:
        for run in runs:
            execute(run, store)
            yield run
        return
    context = multiprocessing.get_context("spawn")  # a forked copy of torch's thread pool would hang
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(execute, run, store): run for run in runs}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def choose_splits(study: StudyConfig, dataset: Dataset, store: Store, quiet: bool = False) -> list[Split]:
    """The splits named by the study, or built once and kept beside its runs."""
    if study.splits == "default":
        return [choose_split(dataset, "default")]
    if not isinstance(study.splits, BuildSplits):
        paths = [study.splits] if isinstance(study.splits, str) else study.splits
        return [split for path in paths for split in load_splits(path)]
    kept = store.root / "splits.json"
    recipe = study.splits.model_dump() | {"data": dataset.fingerprint}
    if kept.exists():
        splits = load_splits(kept)
        if splits and splits[0].provenance.get("recipe") == recipe:
            return list(splits)
    options = study.splits
    sample = dataset.sample(options.images_per_class) if options.images_per_class else dataset
    splits = build_splits(
        extract_features(sample, backbone=options.backbone, quiet=quiet),
        sample.labels,
        class_names=sample.classes,
        start=dataset.default_split,
        n_splits=options.n_splits,
        reverse=options.reverse,
        removal=options.removal,
        fid_mode=options.fid_mode,  # type: ignore[arg-type]
        dataset=dataset.name,
        provenance={"recipe": recipe},
    )
    save_splits(kept, splits)
    return list(splits)


def execute(run: PlannedRun, store: Store, **overrides: Any) -> None:
    """One run into its folder; a failure is recorded, not raised."""
    store.clear_failure(run.id)
    settings = {"out": str(store.folder(run.id)), "quiet": True, **overrides}
    try:
        train(run.config.model_copy(update=settings))
    except KeyboardInterrupt:
        raise
    except Exception:
        store.record_failure(run.id, traceback.format_exc())
        console.print(f"[red]failed[/] {run.method} on {run.split.name}, seed {run.seed}: see {store.folder(run.id)}")


def read_study(planned: list[PlannedRun], dataset: Dataset, store: Store) -> StudyTable:
    """The finished runs of a plan as a table, recall matched to the smallest test set beside the papers' recall."""
    results = {run.id: result for run in planned if (result := store.result(run.id)) is not None}
    done = [run for run in planned if run.id in results]
    if not done:
        failures = [reason for run in planned if (reason := store.failure(run.id))]
        last = failures[-1].strip().splitlines()[-1] if failures else "nothing was run"
        raise OodmlError(f"No run of the study has finished: {last}")
    match = smallest_test_set([run.split for run in done], dataset)
    rows = []
    for run in done:
        result, folder = results[run.id], store.folder(run.id)
        scores = {**result["selected"]["scores"], **matched_recall(folder, match)}
        rows.append(
            Row(run.method, run.split.name, run.split.fid or 0.0, run.seed, scores, result["untrained"], path=folder)
        )
    return StudyTable(rows)
