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
from oodml.adaptation.adapt import AdaptOptions, check_at_least
from oodml.config import dataset_identity
from oodml.data import Dataset, load_dataset, load_images
from oodml.encoders.published import encoder_specs
from oodml.evaluation import check_metrics
from oodml.shift import Split
from oodml.study.encoders import add_encoder, missing_encoders, scored_labels
from oodml.study.engines import Engine, make_engine
from oodml.study.engines.execute import is_done, shared_dataset
from oodml.study.grid import PLAN, SETTINGS, PlannedRun, load_settings, plan, save_plan, saved_match
from oodml.study.load import load_study
from oodml.study.migration import identities_of
from oodml.study.settings import StudyConfig
from oodml.study.splits import SPLITS, choose_splits, copy_splits, known_splits, smallest_test_set, stored_splits
from oodml.study.store import Store, open_store
from oodml.study.table import StudyTable

MARKS = (SETTINGS, PLAN, SPLITS)  # any of them makes a folder that of a study
ADVICE = "give --out another folder."
POLL_SECONDS = 2.0  # between two looks at runs that other processes work on
_ANY = Split(["a", "b"], ["c", "d"], name="any split")  # the settings of a run do not depend on its split


def run_study(
    study: StudyConfig,
    out: str | Path | Store | None = None,
    engine: str | Engine = "local",
    quiet: bool = False,
    **options: Any,
) -> StudyTable:
    """Do what is missing of the study in the folder (or at the URL) `out`, by default studies/NAME, and read all of it.

    Started again, it resumes: finished runs are reused, an interrupted run resumes from its checkpoint, a failed one
    is tried again. A run that fails is recorded with its traceback and does not stop the others. Started twice at
    once, the two share the work. `options` are the engine's: `workers=` (local), `address=`, `cpus=`, `gpus=` (ray).
    """
    store = open_store(out if out is not None else default_folder(study))
    chosen = make_engine(engine, **options) if isinstance(engine, str) else engine  # refused before a plan is written
    run_missing(prepare(study, store, quiet), store, chosen, quiet)
    for name in missing_encoders(study.generic or (), store, stored_splits(store), saved_match(store)):
        add_encoder(store, {"name": name}, name, quiet=quiet)
    return load_study(store)


def default_folder(study: StudyConfig) -> Path:
    return Path("studies") / study.name


def prepare(
    study: StudyConfig, store: Store, quiet: bool = False, is_audit: bool = False, runs_in: Store | None = None
) -> list[PlannedRun]:
    """The plan of a study, with its settings, its splits and the plan itself written into the store.

    Runs of an earlier version are found under their names of today; where the runs are in another store (`runs_in`),
    nothing is written there. A store that holds the study of another dataset, an audit, or something else, is refused,
    unless this is an audit (`is_audit`): it has compared the images themselves, wherever they are now.
    """
    if not is_audit:
        _refuse_audit(store)
        store.check_folder("study", MARKS)
        _refuse_another_dataset(study, store)
    check_study(study)
    dataset = load_dataset(study.dataset)
    images = load_images(dataset, quiet=quiet)
    readable = images.dataset  # what the runs will have
    splits = choose_splits(study, readable, store, quiet)
    match = smallest_test_set(splits, readable)
    planned = plan(study, splits, match)
    _refuse_names_of_encoders(study, planned, store)
    store.write(SETTINGS, study.to_yaml().encode())
    save_plan(planned, store, match)
    (runs_in or store).adopt(identities_of(runs_in or store, small_images=not images.shrunk), write=runs_in is None)
    _warn_of_changed_images(planned, store, dataset)
    return planned


def outline(study: StudyConfig, store: Store) -> list[PlannedRun]:
    """The plan without reading an image: where the splits must still be built, runs on others of about their size."""
    _refuse_audit(store)
    check_study(study)
    dataset = load_dataset(study.dataset)
    splits = known_splits(study, dataset, store)
    return plan(study, splits if splits is not None else _example_splits(study.splits, dataset))


@contextlib.contextmanager
def preview(study: StudyConfig, store: Store, quiet: bool = False) -> Iterator[list[PlannedRun]]:
    """The plan as `prepare` would make it, written into a temporary store: the study's own is not changed."""
    _refuse_audit(store)
    with tempfile.TemporaryDirectory(prefix="oodml-plan-") as folder:
        temporary = Store(folder)
        copy_splits(store, temporary)
        yield prepare(study, temporary, quiet, runs_in=store)


def check_study(study: StudyConfig) -> None:
    """Raise for settings that no run could use, or that would only fail once the runs are trained."""
    for run in plan(study, [_ANY]):
        check_metrics((*(run.config.metrics or ()), run.config.selection_metric))
    for shots in study.shots or ():
        check_at_least("shots", shots, 1)
    AdaptOptions(study.episodes, **study.few_shot)
    for target in study.transfer or ():
        shared_dataset(target)
    encoder_specs(study.generic or ())


def _example_splits(options: Any, dataset: Dataset) -> list[Split]:
    """Splits of the dataset's classes in halves, as many as will be built."""
    names, half = list(dataset.classes), len(dataset.classes) // 2
    turned = [names[i:] + names[:i] for i in range(options.n_splits)]
    return [Split(each[:half], each[half:], name=f"not built yet {i}") for i, each in enumerate(turned)]


def _refuse_names_of_encoders(study: StudyConfig, planned: list[PlannedRun], store: Store) -> None:
    """A method with the name of an encoder that is only scored would share its row of the table."""
    taken = {*(study.generic or ()), *scored_labels(store)} & {run.method for run in planned}
    if taken:
        raise OodmlError(f"{min(taken)!r} is an encoder that the study scores; give the method another label.")


def _warn_of_changed_images(planned: list[PlannedRun], store: Store, dataset: Dataset) -> None:
    """Warn once for the whole study if there are results of images that have changed since."""
    results = [result for run in planned if (result := store.result(run.id)) is not None]
    old = sum(each["dataset"].get("loaded", dataset.fingerprint) != dataset.fingerprint for each in results)
    if old:
        warnings.warn(
            f"The images of {dataset.name!r} have changed since {old} of the {len(results)} finished runs in "
            f"{store.url} were trained; these keep their old scores. Remove its runs/ and scored/, or choose another "
            "folder, to compute them from the current images.",
            stacklevel=4,
        )


def _refuse_audit(store: Store) -> None:
    """An audit's answer would no longer be about the runs of its folder."""
    if (audited := store.audited()) is not None:
        raise OodmlError(f"{store.url} holds an audit of {audited['root']}, which a study would change; {ADVICE}")


def _refuse_another_dataset(study: StudyConfig, store: Store) -> None:
    """Results of two datasets in one folder would mix. Other methods, seeds or splits are the same study, changed."""
    if store.read(SETTINGS) is None:
        return
    held = load_settings(store)
    found = dataset_identity(held.get("dataset", StudyConfig.model_fields["dataset"].default))
    if found != dataset_identity(study.dataset):
        named = " ".join(map(str, found.values()))
        raise OodmlError(f"{store.url} holds the study {held.get('name')!r} of dataset {named}; {ADVICE}")


def run_missing(planned: list[PlannedRun], store: Store, engine: Engine, quiet: bool = False) -> None:
    """Train what has no result yet, teachers before their students. Runs of other processes come last: done by then,
    or taken over."""
    missing = []
    for run in planned:
        if not is_done(run, store):
            missing.append(run)
        elif store.failure(run.id) is not None:
            store.clear_failure(run.id)  # of something the study no longer asks for
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
    """The runs that are still to be done, as soon as one of them is free or none is left."""
    while runs := [run for run in runs if not is_done(run, store)]:
        free = [run for run in runs if not store.is_claimed(run.id)]
        if free:
            return runs
        time.sleep(POLL_SECONDS)
    return []
