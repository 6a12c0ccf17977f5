"""`oodml tune`: search the options of a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from oodml.cli._app import app, folder_given, out, parse_settings, parse_yaml, print_table


@app.command("tune")
def tune_command(
    method: str = typer.Argument(help="A method's or a loss's name, or {name: rho, base: triplet}."),
    config: Path | None = typer.Option(None, help="A YAML file with the other settings of the run."),
    folder: Path | None = typer.Option(
        None, "--out", help="Where trials go; rerun to resume; default: search/METHOD.", callback=folder_given
    ),
    trials: int = typer.Option(20, help="How many runs to try."),
    metric: str = typer.Option("recall@1", help="The metric to maximise, on the validation classes."),
    setting: list[str] = typer.Option([], "--set", help="Any setting of the run as key=value."),
) -> None:
    """Search a method's options on validation classes.

    The test classes are never used. It needs Optuna (pip install optuna).
    """
    import yaml

    from oodml.config import RunConfig
    from oodml.study.search import search, search_name

    values = {**parse_settings(setting), "method": parse_yaml("METHOD", method)}
    run = RunConfig.load(config, **values) if config else RunConfig(**values)
    found = search(run, folder or Path("search") / search_name(values["method"]), trials, metric)
    best = sorted(found.trials, key=lambda trial: -trial[1])[:10]
    names = list(best[0][0])
    rows = [[f"{100 * score:.2f}", *(_shown(options[name]) for name in names)] for options, score in best]
    print_table(f"Best trials: {metric} of the validation classes in per cent", [metric, *names], rows)
    out.print(yaml.safe_dump({"method": found.method}, sort_keys=False), highlight=False)


def _shown(value: Any) -> str:
    """The value of an option, which may be a word."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
