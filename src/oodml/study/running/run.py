"""Run a study: splits, then every missing run of the grid, then the table."""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml._progress import progress_bar
from oodml.config import dataset_identity
from oodml.data import Dataset, load_dataset, load_images
from oodml.encoders.published import scored_by
from oodml.study.encoders import score_pretrained
from oodml.study.engines import Engine, make_engine
from oodml.study.engines.execute import is_done
from oodml.study.migration import identities_of
from oodml.study.plan import (
    PLAN,
    SETTINGS,
    SPLITS,
    PlannedRun,
    StudyConfig,
    choose_splits,
    keep_splits_of,
    load_settings,
    plan,
    save_plan,
    saved_match,
    stored_splits,
)
from oodml.study.results import load_study, scored_as, scored_labels, smallest_test_set, valid_scores
from oodml.study.running.checks import check_study
from oodml.study.statistics import StudyTable
from oodml.study.store import Store, open_store

MARKS = (SETTINGS, PLAN, SPLITS)  # any of them makes a folder that of a study
ADVICE = "give --out a folder of its own."
POLL_SECONDS = 2.0  # between two looks at runs that somebody else works on


def run_study(
    study: StudyConfig,
    out: str | Path | Store | None = None,
    engine: str | Engine = "local",
    quiet: bool = False,
    **options: Any,
) -> StudyTable:
    """Do what is missing of the study in the folder (or at the URL) `out`, by default studies/NAME, and read all of it.

    Started again, it goes on: finished runs are re-used, an interrupted run resumes from its checkpoint, a failed one
    is tried again. A run that fails is recorded with its traceback and does not stop the others. Started twice at
    once, the two share the work. `options` are the engine's: `workers=` (local), `address=`, `cpus=`, `gpus=` (ray).
    """
    store = open_store(out if out is not None else default_folder(study))
    chosen = make_engine(engine, **options) if isinstance(engine, str) else engine  # refused before a plan is written
    run_missing(prepare(study, store, quiet), store, chosen, quiet)
    score_generic(study, store, quiet)
    return load_study(store)


def default_folder(study: StudyConfig) -> Path:
    return Path("studies") / study.name


def prepare(
    study: StudyConfig, store: Store, quiet: bool = False, claimed: bool = False, runs_in: Store | None = None
) -> list[PlannedRun]:
    """The plan of a study, with its settings, its splits and the plan itself written into the store.

    Runs of an earlier version are found under what they are called today; where the runs are in another store
    (`runs_in`), nothing is written there.

    A store that holds another data set's study, an audit, or something else, is refused, unless an audit has `claimed`
    it: that has compared the pictures themselves, wherever they lie now.
    """
    if not claimed:
        _refuse_audit(store)
        store.refuse_strangers("study", MARKS)
        _refuse_another_dataset(study, store)
    check_study(study)
    dataset = load_dataset(study.dataset)
    images = load_images(dataset, quiet=quiet)
    readable = images.dataset  # what the runs will have
    splits = choose_splits(study, readable, store, quiet)
    planned = plan(study, splits)
    _refuse_names_of_encoders(study, planned, store)
    store.write(SETTINGS, study.to_yaml().encode())
    save_plan(planned, store, smallest_test_set(splits, readable))
    (runs_in or store).adopt(identities_of(runs_in or store, small_images=not images.shrunk), write=runs_in is None)
    _warn_of_other_pictures(planned, store, dataset)
    return planned


def _refuse_names_of_encoders(study: StudyConfig, planned: list[PlannedRun], store: Store) -> None:
    """A method with the name of an encoder that is only scored would share its row of the table."""
    taken = {*(study.generic or ()), *scored_labels(store)} & {run.method for run in planned}
    if taken:
        raise OodmlError(f"{min(taken)!r} is an encoder that the study scores; give the method another label.")


def _warn_of_other_pictures(planned: list[PlannedRun], store: Store, dataset: Dataset) -> None:
    """Say once for the whole study that results are there of pictures that have changed since."""
    results = [result for run in planned if (result := store.result(run.id)) is not None]
    old = sum(each["dataset"].get("loaded", dataset.fingerprint) != dataset.fingerprint for each in results)
    if old:
        warnings.warn(
            f"The pictures of {dataset.name!r} have changed since {old} of the {len(results)} finished runs in "
            f"{store.url} were trained; these keep their old scores. Remove its runs/ and scored/, or choose another "
            "folder, to compute them from the pictures of now.",
            stacklevel=4,
        )


def _refuse_audit(store: Store) -> None:
    """An audit's answer would no longer be about the runs beside it."""
    if (audited := store.audited()) is not None:
        raise OodmlError(f"{store.url} holds an audit of {audited['root']}, which a study would take over; {ADVICE}")


def _refuse_another_dataset(study: StudyConfig, store: Store) -> None:
    """Results of two data sets in one folder would mix. Other methods, seeds or splits are the same study, changed."""
    if store.read(SETTINGS) is None:
        return
    held = load_settings(store)
    found = dataset_identity(held.get("dataset", StudyConfig.model_fields["dataset"].default))
    if found != dataset_identity(study.dataset):
        named = " ".join(map(str, found.values()))
        raise OodmlError(f"{store.url} holds the study {held.get('name')!r} of data set {named}; {ADVICE}")


@contextlib.contextmanager
def preview(study: StudyConfig, store: Store, quiet: bool = False) -> Iterator[tuple[list[PlannedRun], Store]]:
    """The plan as `prepare` would make it, and a passing store that holds it: the study's own stays as it is."""
    _refuse_audit(store)  # its runs would be counted, and could never be gone on with
    with tempfile.TemporaryDirectory(prefix="oodml-plan-") as folder:
        passing = Store(folder)
        keep_splits_of(store, passing)
        yield prepare(study, passing, quiet, runs_in=store), passing


def missing_generic(study: StudyConfig, store: Store, planned_in: Store | None = None) -> list[str]:
    """The study's generic backbones without scores on all of its splits, as the store (or `planned_in`) has them."""
    planned_in = planned_in or store
    splits, match = stored_splits(planned_in), saved_match(planned_in)
    held = {name: scored_as(store, name) for name in study.generic or ()}
    return [
        name
        for name, found in held.items()
        if found is None or not scored_by(name, found) or len(valid_scores(found, splits, match)) < len(splits)
    ]


def score_generic(study: StudyConfig, store: Store, quiet: bool = False) -> None:
    """Score the generic backbones that are missing: normalised features, no training."""
    if missing := missing_generic(study, store):
        score_pretrained(store, [{"name": name, "label": name} for name in missing], quiet=quiet)


def run_missing(planned: list[PlannedRun], store: Store, engine: Engine, quiet: bool = False) -> None:
    """Train what has no result yet, teachers before their students. Runs that somebody else works on come last: done
    by then, or taken over."""
    missing = []
    for run in planned:
        if not is_done(run, store):
            missing.append(run)
        elif store.failure(run.id) is not None:
            store.clear_failure(run.id)  # of something that the study no longer asks for
    with progress_bar() as bar:
        bar.disable = quiet
        task = bar.add_task("Training", total=len(planned), completed=len(planned) - len(missing))
        while missing:
            undone, elsewhere = {run.id for run in missing}, []
            ready = [run for run in missing if run.teacher not in undone]
            students = [run for run in missing if run.teacher in undone]
            for run, outcome in engine(ready, store):
                if outcome == "elsewhere":
                    elsewhere.append(run)
                else:
                    bar.update(task, description=f"Trained {run.method} on {run.split.name}", advance=1)
            left = _wait(elsewhere, store)
            bar.update(task, advance=len(elsewhere) - len(left))
            missing = left + students


def _wait(runs: list[PlannedRun], store: Store) -> list[PlannedRun]:
    """Those of the runs that are still to be done, as soon as one of them is free or none is left."""
    while runs := [run for run in runs if not is_done(run, store)]:
        free = [run for run in runs if not store.is_claimed(run.id)]
        if free:
            return runs
        time.sleep(POLL_SECONDS)
    return []
