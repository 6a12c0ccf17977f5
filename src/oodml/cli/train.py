"""`oodml train`: one run, from settings to scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodml._errors import OodmlError
from oodml.cli._app import app, method_name, out, parse_settings, print_table, with_root

if TYPE_CHECKING:
    from oodml.training import Result


@app.command("train")
def train_command(
    config: Path | None = typer.Argument(None, help="A YAML file of settings; the options below replace its values."),
    dataset: str | None = typer.Option(None, help="A dataset's name, or a folder of class folders (default: glyphs)."),
    root: str | None = typer.Option(None, help="Where the dataset's images are."),
    split: str | None = typer.Option(None, help="'default', a split file, or FILE#NAME for one split of a series."),
    backbone: str | None = typer.Option(
        None, help="tiny or any timm name; default: tiny, with --train head tf_efficientnet_lite0."
    ),
    weights: str | None = typer.Option(None, help="A file of trained weights for the backbone."),
    method: str | None = typer.Option(None, help="The name of a method or a loss; `oodml methods` lists them."),
    embedding_dim: int | None = typer.Option(None, "--embedding-dim", "-d", help="Size of the embedding."),
    depth: str | None = typer.Option(None, "--train", help="all, or head: frozen backbone, heads only."),
    epochs: int | None = typer.Option(None, help="Length of the run in epochs ..."),
    steps: int | None = typer.Option(None, help="... or in steps."),
    batch_size: int | None = typer.Option(None, help="Images per batch, over all processes."),
    lr: float | None = typer.Option(None, help="Learning rate."),
    protocol: str | None = typer.Option(
        None, help="The settings of a paper: revisiting, s2sd, oodml, sharing; revisiting-printed, ...: as printed."
    ),
    selection: str | None = typer.Option(None, help="val, val-then-full, last, or test (as in the papers)."),
    seed: int | None = typer.Option(None, min=0, help="The seed of everything random."),
    folder: str | None = typer.Option(None, "--out", help="The run's folder; an unfinished run in it is resumed."),
    device: str | None = typer.Option(None, help="auto, cpu or cuda."),
    setting: list[str] = typer.Option(
        [], "--set", help="Any other setting as key=value, e.g. --set samples_per_class=4."
    ),
    quiet: bool = typer.Option(False, help="No progress bar."),
) -> None:
    """Train an embedder and measure it on unseen classes.

    For several processes: torchrun --nproc-per-node N -m oodml train ...
    """
    from oodml._progress import console
    from oodml.cli._inputs import quietly
    from oodml.config import RunConfig, read_settings
    from oodml.training import Interrupted, train
    from oodml.training.distributed import is_main_process

    given = {
        "dataset": dataset,
        "split": split,
        "backbone": backbone,
        "weights": weights,
        "method": method,
        "embedding_dim": embedding_dim,
        "train": depth,
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "lr": lr,
        "protocol": protocol,
        "selection": selection,
        "seed": seed,
        "out": folder,
        "device": device,
    }
    values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if config is not None and config.is_dir():
        raise OodmlError(
            f"{config} is a folder, and the first argument of train is a file of settings. To train on the images in "
            f"it: oodml train --dataset {config}."
        )
    if dataset is None and config is None and split is not None and split != "default":
        values |= _of_split(split, root)
    values |= parse_settings(setting) | ({"quiet": True} if quiet else {})
    if root is not None:
        of_file = read_settings(config, "settings") if config is not None else {}
        values["dataset"] = with_root({"dataset": "folder", **of_file, **values}["dataset"], root)
    settings = RunConfig.load(config, **values) if config is not None else RunConfig(**values)
    try:
        result = quietly(train, settings)
    except Interrupted as stopped:
        if is_main_process():
            console.print(str(stopped))
        sys.exit(stopped.exit_code)
    if is_main_process():
        _show(result)


def _of_split(split: str, root: str | None) -> dict[str, Any]:
    """The dataset that a split file names, if it does."""
    from oodml.cli.splits import dataset_of_splits
    from oodml.shift import Split, Splits

    found = Split.load(split)
    if not found.dataset:
        return {}
    spec = dataset_of_splits(Splits([found]), None, root)
    return {"dataset": spec if "root" in spec else spec["name"]}


def _show(result: Result) -> None:
    data = result.data
    rows = [
        [name, *(f"{100 * column[name]:.1f}" for column in (result.untrained, result.scores)), f"{100 * gain:+.1f}"]
        + [f"{100 * column[name]:.1f}" for column in (result.last, result.best_on_test)]
        for name, gain in result.gain.items()
    ]
    chosen = "best of each metric" if "maxima" in data else f"selected ({data['selection']})"
    columns = ["test classes, %", "untrained", chosen, "gain", "last", "best on test"]
    config = data["config"]
    title = [data["dataset"]["name"], config["backbone"], method_name(config["method"]), f"seed {data['seed']}"]
    print_table(" · ".join(title), columns, rows)
    seconds, rate, epoch = data["seconds"], data["images_per_second"], data["selected"]["epoch"]
    out.print(f"epoch {epoch:g} selected · {seconds:.1f} s · {rate:,.0f} images/s while training", highlight=False)
    out.print(f"run folder: {result.path}", highlight=False, soft_wrap=True)
