"""`oodml study`: a grid of runs over splits of rising shift, planned, run, watched and exported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml.cli._app import app, folder_given, out, parse_settings, print_table, resumable, with_root

if TYPE_CHECKING:
    from oodml.study import StudyConfig, StudyTable
    from oodml.study.plan import PlannedRun
    from oodml.study.running import RunStatus
    from oodml.study.store import Store

study_app = typer.Typer(help="Methods × splits × seeds: plan, run, watch, read.", no_args_is_help=True)
app.add_typer(study_app, name="study")

STUDY = typer.Argument(help="A preset's name (`oodml study list`) or a YAML file.")
FOLDER = typer.Argument(help="The study's folder or URL.", callback=folder_given)
DATASET = typer.Option(None, help="Another data set than the study's: a name, or a folder of class folders.")
ROOT = typer.Option(None, help="Where the data set's pictures are.")
CHANGES = typer.Option([], "--set", help="Any setting of the study as key=value, e.g. --set seeds=[0,1,2].")


@study_app.command("run")
def run_command(
    study: str = STUDY,
    folder: str | None = typer.Option(
        None, "--out", help="A folder, or a URL (s3://…); default: studies/NAME.", callback=folder_given
    ),
    engine: str = typer.Option("local", help="local, or ray."),
    workers: int | None = typer.Option(None, help="local: runs side by side."),
    address: str | None = typer.Option(None, help="ray: the cluster to join."),
    gpus: float | None = typer.Option(None, help="ray: GPUs a run, .25 for four runs on one."),
    dataset: str | None = DATASET,
    root: str | None = ROOT,
    setting: list[str] = CHANGES,
    quiet: bool = typer.Option(False, help="No progress bar."),
) -> None:
    """Do what is missing of a study; started again, it goes on."""
    from oodml.study import run_study
    from oodml.study.running import default_folder, status

    settings = _settings(study, setting, dataset, root)
    place = folder or str(default_folder(settings))
    with resumable():
        table = run_study(settings, place, engine, quiet, workers=workers, address=address, gpus=gpus)
    show_study(table)
    failed = _show_failures(status(_places(place), _store(place)))
    out.print(f"study folder: {place}", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@study_app.command("plan")
def plan_command(
    study: str = STUDY,
    folder: str | None = typer.Option(
        None, "--out", help="Where it will run: what is done there is counted.", callback=folder_given
    ),
    calibrate: bool = typer.Option(True, help="Try every method for a few steps to estimate the time."),
    dataset: str | None = DATASET,
    root: str | None = ROOT,
    setting: list[str] = CHANGES,
) -> None:
    """Show the runs of a study and how long they will take."""
    from oodml.study.running import default_folder, preview

    settings = _settings(study, setting, dataset, root)
    place = folder or str(default_folder(settings))
    store = _store(place)
    with preview(settings, store) as (planned, planned_in):
        _show_plan(settings, planned, _beside_training(settings, planned, store, planned_in), store, calibrate)


def _show_plan(
    settings: StudyConfig, planned: list[PlannedRun], beside: list[str], store: Store, calibrate: bool
) -> None:
    from oodml._machine import cores
    from oodml.study.running import counts, estimate_seconds, status

    found = status(planned, store)
    rows = [
        [method, len({r.split.name for r in runs}), len({r.seed for r in runs}), len(runs)]
        for method in dict.fromkeys(run.method for run in planned)
        if (runs := [run for run in planned if run.method == method])
    ]
    numbers = counts(found)
    if planned:  # a study of generic encoders alone trains nothing
        print_table(f"{settings.name}: {len(planned)} runs", ["method", "splits", "seeds", "runs"], rows)
        out.print(" · ".join(f"{count} {state}" for state, count in numbers.items()), highlight=False)
    for line in beside:
        out.print(line, highlight=False, soft_wrap=True)
    seconds = estimate_seconds(found, planned, calibrate)
    if seconds is None:
        out.print("No estimate of the time: no run of some method has finished, and --no-calibrate was given.")
    elif seconds:
        one, side_by_side = _duration(seconds), cores()
        what = "training" if settings.shots or settings.transfer or settings.generic else "work"
        out.print(
            f"About {one} of {what}, {_duration(seconds / side_by_side)} with {side_by_side} runs side by side.",
            highlight=False,
        )


def _beside_training(settings: StudyConfig, planned: list[PlannedRun], store: Store, planned_in: Store) -> list[str]:
    """What else a study computes: after each of its runs, and from encoders that are not trained."""
    from oodml.study.follow import is_followed, target_name
    from oodml.study.running import missing_generic

    lines = []
    if settings.shots:
        shots = ", ".join(map(str, settings.shots))
        lines.append(f"After each run: adaptation with {shots} shots, {settings.episodes} episodes each.")
    if settings.transfer:
        targets = ", ".join(target_name(each, settings.transfer) for each in settings.transfer)
        lines.append(f"After each run: tests on the classes of {targets}.")
    if lines:
        lines.append(f"{sum(is_followed(run, store) for run in planned)} of {len(planned)} runs have that already.")
    if settings.generic:
        done = len(settings.generic) - len(missing_generic(settings, store, planned_in))
        encoders = ", ".join(settings.generic)
        lines.append(f"Without training, on every split: {encoders} ({done} of {len(settings.generic)} done).")
    return lines


@study_app.command("status")
def status_command(folder: str = FOLDER, every: bool = typer.Option(False, "--all", help="Every run.")) -> None:
    """Show what is done, running, failed (and why) or waiting."""
    from oodml.study.running import counts, status

    found = status(_places(folder), _store(folder))
    out.print(" · ".join(f"{count} {state}" for state, count in counts(found).items()), highlight=False)
    if every:
        rows = [[r.place.id, r.place.method, _split_name(r), r.place.seed, r.state] for r in found]
        print_table("Runs", ["run", "method", "split", "seed", "state"], rows)
    _show_failures(found)
    from oodml.study.migration import stale_runs

    _show_stale(stale_runs(_store(folder)))


@study_app.command("migrate")
def migrate_command(
    folder: str = FOLDER,
    weights: Path | None = typer.Option(None, help="The file that the runs started from, if it is elsewhere now."),
    root: str | None = ROOT,
) -> None:
    """Find the runs of an earlier version under the names that they have today; list those that are stale."""
    from oodml.data import load_dataset, load_images
    from oodml.study.migration import identities_of, stale_runs
    from oodml.study.plan import load_settings

    store = _store(folder)
    dataset = load_settings(store)["dataset"]
    images = load_images(load_dataset(dataset if root is None else with_root(dataset, root)))
    store.adopt(identities_of(store, weights, small_images=not images.shrunk))
    out.print(f"{len(store.identities.renamed)} runs of an earlier version are found under their new names.")
    _show_stale(stale_runs(store))


def _show_stale(stale: dict[str, int]) -> None:
    for why, count in stale.items():
        out.print(f"{count} runs of an earlier version are stale: {why}.", highlight=False, soft_wrap=True)


@study_app.command("show")
def show_command(folder: str = FOLDER) -> None:
    """Print the table of a study: scores by split, and AGS."""
    from oodml.study import load_study

    show_study(load_study(folder))


@study_app.command("export")
def export_command(
    folder: str = FOLDER, file: Path = typer.Argument(help="What to write: a .csv or a .parquet file.")
) -> None:
    """Write a study as a flat table, one row a run."""
    from oodml.study import load_study
    from oodml.study.results.export import export_rows, write_export

    rows = export_rows(folder, load_study(folder))
    out.print(f"{len(rows)} rows in {write_export(rows, file)}", highlight=False, soft_wrap=True)


def show_study(table: StudyTable, metrics: tuple[str, ...] | None = None) -> None:
    """Methods down, splits across in order of shift, at the end AGS (of one shift the mean) with its 95 % interval; one
    table a metric."""
    from oodml.evaluation.estimate import share_text
    from oodml.study.forecast import study_errors
    from oodml.study.results import METRIC, ranking

    summary = "AGS" if table.shifts > 1 else "mean"
    for metric in (each for each in metrics or ("recall@1", METRIC) if each in table.metrics):
        ranked, rows = ranking(table, metric), []
        for method in table.methods:
            cells = [table.cell(metric, method, split) for split in table.splits]
            score = ranked.get(method)
            summed_up = share_text(score.mean, score.half_width) if score else "–"
            rows.append([method, *[f"{100 * c.mean:.1f}" if c else "–" for c in cells], summed_up])
        if table.adds_untrained(metric):
            untrained = [*table.untrained(metric), table.untrained_over_splits(metric)]
            rows.append(["untrained", *("–" if math.isnan(each) else f"{100 * each:.1f}" for each in untrained)])
        by, heads = split_heads(table.splits, table.fids)
        print_table(f"{metric} in per cent, by {by}", ["method", *heads, summary], rows)
        if table.shifts > 2 and (errors := study_errors(table, metric)):
            error = 100 * sum(errors.values()) / len(errors)
            told = f"A split left out is predicted from the others to {error:.1f} points (mean over methods)."
            out.print(told, highlight=False, soft_wrap=True)
    for told in filter(None, [*table.notes, table.unfinished]):
        out.print(told, highlight=False, soft_wrap=True)


def split_heads(names: list[str], fids: list[float]) -> tuple[str, list[str]]:
    """(what the columns of splits are called by, their headings): the shift, or their names where none was measured."""
    return ("FID", [fid_text(fid) for fid in fids]) if any(fids) else ("split", list(names))


def fid_text(fid: float) -> str:
    """The shift of a split, short enough to stand above its column."""
    return f"{fid:.3g}" if fid < 100 else f"{fid:.0f}"


def _show_failures(found: list[RunStatus]) -> bool:
    failed = [each for each in found if each.state == "failed"]
    if failed:
        rows = [[each.place.id, each.place.method, _split_name(each), each.place.seed, each.reason] for each in failed]
        print_table(f"{len(failed)} failed; run again to retry", ["run", "method", "split", "seed", "why"], rows)
    return bool(failed)


def _split_name(each: RunStatus) -> str:
    return each.place.split if isinstance(each.place.split, str) else each.place.split.name


def _settings(study: str, changes: list[str], dataset: str | None, root: str | None) -> StudyConfig:
    from oodml.data import dataset_setting
    from oodml.study.presets import load_preset_or_file

    values = parse_settings(changes)
    if dataset is not None:
        values["dataset"] = dataset_setting(dataset) if root is None else dataset
    settings = load_preset_or_file(study, **values)
    if root is None:
        return settings
    return settings.model_copy(update={"dataset": with_root(settings.dataset, root)})


def _store(folder: str) -> Any:
    from oodml.study.store import open_store

    return open_store(folder)


def _places(folder: str) -> Any:
    from oodml.study.plan import load_plan

    return load_plan(_store(folder))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
