"""`oodml study`: a grid of runs over splits of rising shift: list, plan, run, status, migrate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oodml.cli import _options as option
from oodml.cli._app import app, chosen_dataset, folder_given, out, parse_settings, print_table, resumable, with_root
from oodml.cli.evaluate import retrieval_time_command
from oodml.cli.methods import tune_command

if TYPE_CHECKING:
    from oodml.study import StudyConfig
    from oodml.study.grid import PlannedRun
    from oodml.study.status import RunStatus
    from oodml.study.store import Store

study_app = typer.Typer(help="Methods × splits × seeds: plan, run, watch, read.", no_args_is_help=True)
app.add_typer(study_app, name="study")
study_app.command("search", hidden=True)(tune_command)  # published under these names before
study_app.command("retrieval-time", hidden=True)(retrieval_time_command)


def preset_given(study: str) -> str:
    """Report the path of a file that does not exist; a name may be a preset."""
    return str(option.file_given(Path(study))) if Path(study).suffix in (".yaml", ".yml") else study


STUDY = typer.Argument(help="Name of a preset (`oodml study list`) or a YAML file.", callback=preset_given)
FOLDER = typer.Argument(help="The study's folder or URL.", callback=option.study_given)
CHANGES = typer.Option(
    [],
    "--set",
    help="A setting of the study as key=value, with dots for a part: seeds=[0,1,2], run.epochs=40, "
    "methods.S2SD.gamma=1.",
)


@study_app.command("list")
def list_command(
    name: str | None = typer.Argument(None, help="Name of one preset, to show its settings; or a part of names."),
) -> None:
    """List the presets.

    Print what each reproduces, and what it still needs.
    """
    from itertools import groupby

    import yaml

    from oodml.study.presets import matching_presets, presets, unknown_preset

    if name is not None and name in presets():
        preset = presets()[name]
        for key, text in preset.header.items():
            out.print(f"{key}: {text}", highlight=False)
        if preset.needs:
            out.print(f"Needs: {', '.join(preset.needs)}", highlight=False)
        out.print(yaml.safe_dump(dict(preset.settings), sort_keys=False, allow_unicode=True))
        return
    shown = list(presets().values()) if name is None else matching_presets(name)
    if name is not None and not shown:
        raise unknown_preset(name)
    for experiment, versions in groupby(shown, key=lambda each: each.experiment):
        group = list(versions)
        out.print(f"\n{experiment}", style="bold", highlight=False)
        _print_indented(group[0].header["Reproduces"])
        if ready := [preset.name for preset in group if not preset.needs]:
            _print_indented(", ".join(ready), "cyan")
        for preset in group:
            if preset.needs:
                _print_indented(f"{preset.name}: needs {', '.join(preset.needs)}", "dim")
    out.print("\noodml study list NAME shows what a preset costs, what to expect, and its settings.", highlight=False)


def _print_indented(text: str, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    out.print(Padding(Text(text, style), (0, 0, 0, 2)))


@study_app.command("run")
def run_command(
    study: str = STUDY,
    folder: str | None = typer.Option(
        None, "--out", "-o", help="A folder, or a URL (s3://…); default: studies/NAME.", callback=folder_given
    ),
    engine: str = typer.Option("local", help="local, or ray."),
    workers: int | None = typer.Option(None, help="local: number of runs in parallel."),
    address: str | None = typer.Option(None, help="ray: the cluster to join."),
    gpus: float | None = typer.Option(None, help="ray: GPUs per run; 0.25 for four runs on one."),
    dataset: str | None = option.OTHER_DATASET,
    root: Path | None = option.ROOT,
    setting: list[str] = CHANGES,
    quiet: bool = option.QUIET,
) -> None:
    """Run the missing parts of a study. Rerun to resume."""
    settings = _settings(study, setting, dataset, root)

    from oodml.cli.study_show import show_study
    from oodml.study import run_study
    from oodml.study.grid import load_plan
    from oodml.study.run import default_folder
    from oodml.study.status import status
    from oodml.study.store import open_store

    place = folder or str(default_folder(settings))
    with resumable():
        table = run_study(settings, place, engine, quiet, workers=workers, address=address, gpus=gpus)
    show_study(table)
    store = open_store(place)
    failed = _show_failures(status(load_plan(store), store))
    out.print(f"study folder: {place}", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@study_app.command("plan")
def plan_command(
    study: str = STUDY,
    folder: str | None = typer.Option(
        None, "--out", "-o", help="Folder or URL of the study: what is done there is counted.", callback=folder_given
    ),
    measure: bool = typer.Option(
        False, "--measure", help="Build the splits, and try every method for a few steps to estimate the time."
    ),
    dataset: str | None = option.OTHER_DATASET,
    root: Path | None = option.ROOT,
    setting: list[str] = CHANGES,
) -> None:
    """Show the runs of a study and how long they will take.

    The time is from known speeds; --measure measures them here.
    """
    settings = _settings(study, setting, dataset, root)

    from oodml.study.run import default_folder, outline, preview
    from oodml.study.store import open_store

    store = open_store(folder or str(default_folder(settings)))
    if not measure:
        _show_plan(settings, outline(settings, store), store, measure)
        return
    with preview(settings, store) as planned:
        _show_plan(settings, planned, store, measure)


def _show_plan(settings: StudyConfig, planned: list[PlannedRun], store: Store, measure: bool) -> None:
    from oodml.study.status import counts, status, total_work

    found = status(planned, store)
    rows = [
        [method, len({r.split.name for r in runs}), len({r.seed for r in runs}), len(runs)]
        for method in dict.fromkeys(run.method for run in planned)
        if (runs := [run for run in planned if run.method == method])
    ]
    if planned:  # a study of generic encoders alone trains nothing
        print_table(f"{settings.name}: {len(planned)} runs", ["method", "splits", "seeds", "runs"], rows)
        out.print(" · ".join(f"{count} {state}" for state, count in counts(found).items()), highlight=False)
    missing = [run for run, each in zip(planned, found, strict=True) if math.isnan(each.seconds)]
    if missing:
        work = total_work(missing)
        out.print(
            f"Missing: {work.updates:,} updates on {work.images:,} images, {work.evaluations:,} evaluations on "
            f"{work.embedded:,} images.",
            highlight=False,
            soft_wrap=True,
        )
    for line in _after_training(settings, planned, store):
        out.print(line, highlight=False, soft_wrap=True)
    if missing:
        _show_time(settings, planned, found, measure)


def _show_time(settings: StudyConfig, planned: list[PlannedRun], found: list[RunStatus], measure: bool) -> None:
    from oodml._machine import cores
    from oodml.study.status import known_seconds, measured_seconds

    if measure:
        seconds: float | None = measured_seconds(found, planned)
        source = "a few steps here"
    else:
        seconds, source = known_seconds(found, planned)
    if seconds is None:
        out.print("No estimate of the time: the speed of this backbone is not known; --measure measures it.")
        return
    what = "training" if settings.shots or settings.transfer or settings.generic else "work"
    hint = "" if measure else "; --measure tries it here"
    out.print(
        f"About {_duration(seconds)} of {what}, {_duration(seconds / cores())} with {cores()} runs side by side "
        f"(from {source}{hint}).",
        highlight=False,
        soft_wrap=True,
    )


def _after_training(settings: StudyConfig, planned: list[PlannedRun], store: Store) -> list[str]:
    """What else a study computes: after each of its runs, and from encoders that are not trained."""
    from oodml.study.encoders import missing_encoders
    from oodml.study.engines.execute import is_adapted, target_name
    from oodml.study.splits import stored_splits

    lines = []
    if settings.shots:
        shots = ", ".join(map(str, settings.shots))
        lines.append(f"After each run: adaptation with {shots} shots, {settings.episodes} episodes each.")
    if settings.transfer:
        targets = ", ".join(target_name(each, settings.transfer) for each in settings.transfer)
        lines.append(f"After each run: tests on the classes of {targets}.")
    if lines:
        lines.append(f"{sum(is_adapted(run, store) for run in planned)} of {len(planned)} runs have that already.")
    if settings.generic:
        splits = list({run.split.name: run.split for run in planned}.values()) or stored_splits(store)
        missing = missing_encoders(settings.generic, store, splits, None)
        done, encoders = len(settings.generic) - len(missing), ", ".join(settings.generic)
        lines.append(f"Without training, on every split: {encoders} ({done} of {len(settings.generic)} done).")
    return lines


@study_app.command("status")
def status_command(folder: str = FOLDER, every: bool = typer.Option(False, "--all", help="List every run.")) -> None:
    """Show what is done, running, failed (and why) or waiting."""
    from oodml.study.grid import load_plan
    from oodml.study.migration import stale_runs
    from oodml.study.status import counts, status
    from oodml.study.store import open_store

    store = open_store(folder)
    found = status(load_plan(store), store)
    out.print(" · ".join(f"{count} {state}" for state, count in counts(found).items()), highlight=False)
    if every:
        rows = [[each.run.id, each.run.method, each.run.split, each.run.seed, each.state] for each in found]
        print_table("Runs", ["run", "method", "split", "seed", "state"], rows)
    _show_failures(found)
    _show_stale(stale_runs(store))


@study_app.command("migrate")
def migrate_command(
    folder: str = FOLDER,
    weights: Path | None = typer.Option(None, help="The file of weights that the runs started from, if it has moved."),
    root: Path | None = option.ROOT,
) -> None:
    """Find the runs of an earlier version.

    Give them their present names, and list the stale ones.
    """
    from oodml.data import load_dataset, load_images
    from oodml.study.grid import load_settings
    from oodml.study.migration import identities_of, stale_runs
    from oodml.study.store import open_store

    store = open_store(folder)
    dataset = load_settings(store)["dataset"]
    images = load_images(load_dataset(dataset if root is None else with_root(dataset, str(root))))
    store.adopt(identities_of(store, weights, small_images=not images.shrunk))
    out.print(f"{len(store.identities.renamed)} runs of an earlier version are found under their new names.")
    _show_stale(stale_runs(store))


def _show_stale(stale: dict[str, int]) -> None:
    for why, count in stale.items():
        out.print(f"{count} runs of an earlier version are stale: {why}.", highlight=False, soft_wrap=True)


def _show_failures(found: list[RunStatus]) -> bool:
    failed = [each for each in found if each.state == "failed"]
    if failed:
        rows = [[each.run.id, each.run.method, each.run.split, each.run.seed, each.reason] for each in failed]
        print_table(f"{len(failed)} failed; run again to retry", ["run", "method", "split", "seed", "why"], rows)
    return bool(failed)


def _settings(study: str, changes: list[str], dataset: str | None, root: Path | None) -> StudyConfig:
    from oodml.data import dataset_setting

    values = parse_settings(changes)
    other = None if dataset is None else chosen_dataset(dataset, root)
    if other is not None:
        values["dataset"] = dataset_setting(other)

    from oodml.study.presets import load_preset_or_file

    settings = load_preset_or_file(study, **values)
    if root is None or dataset is not None:
        return settings
    return settings.model_copy(update={"dataset": with_root(settings.dataset, str(root))})


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
