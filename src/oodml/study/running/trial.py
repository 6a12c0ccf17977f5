"""A few steps of a run, tried to learn what the whole of it costs here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from oodml.config import RunConfig
from oodml.data import Dataset
from oodml.training import distributed, train
from oodml.training.embedder import starting_backbone
from oodml.training.job import build_job, prepare_images


def lay_out(config: RunConfig, dataset: Dataset) -> None:
    """All that a run does before its first step; features of a frozen backbone stay on disk."""
    processes = distributed.join(config.device)
    build_job(config, Path(), prepare_images(config, dataset, processes), starting_backbone(config), processes, None)


def try_run(config: RunConfig, dataset: Dataset, steps: int) -> dict[str, Any]:
    """The result of `steps` steps and one evaluation of the run; nothing of it stays on disk."""
    with tempfile.TemporaryDirectory(prefix="oodml-trial-") as folder:
        short = {"steps": steps, "epochs": None, "eval_every": steps, "selection": "last"}
        short |= {"out": str(Path(folder) / "run"), "quiet": True}
        return train(config.model_copy(update=short), dataset).data
