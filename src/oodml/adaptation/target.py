"""A finished run on classes it was not trained on: of its own dataset or another one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.config import RunConfig, as_split
from oodml.data import Dataset, Images, load_dataset
from oodml.evaluation import evaluate
from oodml.shift import Split, make_episodes
from oodml.training.data import ImageSource, choose_sets, choose_split, open_images
from oodml.training.distributed import Processes
from oodml.training.embedder import TrainedEmbedder, load_embedder
from oodml.training.result import load_result
from oodml.training.scoring import embed

FEWEST_IMAGES = 4  # of a support set: a batch has two images of two classes


@dataclass(frozen=True)
class Target:
    """A run with the test classes of `split`, on which it was not trained; `notes` is what a reader should know."""

    run: Path
    config: RunConfig
    trained: TrainedEmbedder
    images: Images
    split: Split
    notes: tuple[str, ...] = ()
    is_own_dataset: bool = True  # the one the run was trained on

    @property
    def data(self) -> Dataset:
        return self.images.dataset

    @cached_property
    def test(self) -> np.ndarray:
        """Positions of the images of the test classes, ascending."""
        return self.data.indices_of(self.split.test)

    @property
    def facts(self) -> dict[str, Any]:
        """Where the numbers come from, as plain data."""
        return {
            "run": self.run.name,
            "trained_on": self.config.dataset_name,
            "dataset": self.data.name,
            "split": self.split.name,
            "fid": self.split.fid,
            "notes": list(self.notes),
        }

    def with_episodes(self, shots: int, episodes: int) -> Target:
        """The same with few-shot episodes in its split: its own, or drawn here, with a note."""
        if (count := shots * len(self.split.test)) < FEWEST_IMAGES:
            raise OodmlError(
                f"{shots} images of each of the {len(self.split.test)} test classes of split {self.split.name!r} are "
                f"{count}, and adapting needs {FEWEST_IMAGES}: take more shots, or a split with more test classes."
            )
        have = self.split.episodes.get(shots, [])
        if len(have) >= episodes:
            return self
        if have:
            raise OodmlError(
                f"Split {self.split.name!r} has {len(have)} episodes of {shots} shots and {episodes} were asked for: "
                f"take episodes={len(have)}, or make more with `oodml splits episodes`."
            )
        made = make_episodes(self.split, self.data, shots=shots, episodes=episodes)
        note = (
            f"Split {self.split.name!r} has no episodes of {shots} shots; {episodes} were drawn with seed 0 (the same "
            "every time). `oodml splits episodes` stores them in its file."
        )
        return replace(self, split=made, notes=(*self.notes, note))


def read_target(
    run: str | Path,
    split: Any = None,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    device: torch.device | None = None,
    quiet: bool = False,
) -> Target:
    """Load a run for the test classes of `split`; split and dataset default to the run's own.

    For another dataset the default is its own default split: none of its classes were trained on.
    """
    device = device or torch.device("cpu")
    found = load_result(run)
    config = RunConfig.of_run(found.path)
    data = load_dataset(config.dataset if dataset is None else dataset)
    images = open_images(data, device if config.train == "all" else "cpu", config, quiet)
    data = images.dataset  # without the images that could not be read, as the run had it
    same = data.fingerprint == found.data["dataset"]["fingerprint"]
    elsewhere = dataset is not None and not same
    chosen = _choose_split(config, data, split, elsewhere)
    _check_data(config, chosen, data, dataset is None, found.path)
    if not elsewhere:
        _check_unseen(config, data, chosen, found.path)
    notes = []
    if dataset is None and not same:
        notes.append(f"The dataset {data.name!r} has changed since the run {found.path.name} was trained.")
    if found.data["selection"] != "val":
        notes.append(
            f"The run was trained on the validation classes too (selection={found.data['selection']!r}); the published "
            "few-shot rows come from models trained without them."
        )
    trained = load_embedder(found.path, str(device))
    trained.embedder.requires_grad_(False)
    return Target(found.path, config, trained, images, chosen, tuple(notes), is_own_dataset=not elsewhere)


def _choose_split(config: RunConfig, data: Dataset, split: Any, elsewhere: bool) -> Split:
    if split is None:
        split = "default" if elsewhere else config.split
    return choose_split(data, split) if split == "default" else as_split(split)


def _check_data(config: RunConfig, split: Split, data: Dataset, own: bool, run: Path) -> None:
    """Raise unless the test classes of the split are of the dataset at hand."""
    wanted = split.test_dataset or split.dataset
    if not wanted or wanted == data.name or (data.name == "folder" and Path(wanted).is_absolute()):
        return  # folders all have the same name, so a split across two of them has their paths instead
    if own:
        raise OodmlError(
            f"The run {run} was trained on {config.dataset_name!r}, and the test classes of split {split.name!r} are "
            f"of {wanted!r}. To score it on that dataset give dataset={wanted!r} too (with its root); otherwise take a "
            f"split of {config.dataset_name!r}."
        )
    raise OodmlError(f"The test classes of split {split.name!r} are of {wanted!r}, not of dataset={data.name!r}.")


def _check_unseen(config: RunConfig, data: Dataset, split: Split, run: Path) -> None:
    seen = sorted(set(split.test) & set(choose_split(data, config.split).train))
    if seen:
        shown = ", ".join(repr(name) for name in seen[:5]) + (f" and {len(seen) - 5} more" if len(seen) > 5 else "")
        raise OodmlError(
            f"The run {run} was trained on classes that split {split.name!r} tests: {shown}. Take the split the run "
            "was trained with, or a run that was trained on this one."
        )


def embed_run(
    run: str | Path,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    split: Any = None,
    device: str = "cpu",
) -> tuple[Tensor, np.ndarray]:
    """Embeddings and labels of the test classes of a dataset and split; both default to the finished run's own.

    Another dataset without a split is embedded whole: none of its classes were trained on.
    """
    trained = load_embedder(run, device)
    config = RunConfig.of_run(run)
    images = open_images(load_dataset(config.dataset if dataset is None else dataset), trained.device)
    found = images.dataset
    own = dataset is None or _is_own(found, dataset, config, run)
    if split is None and not own:
        indices = np.arange(len(found))
    else:
        chosen = choose_split(found, config.split if split is None else split)
        indices = choose_sets(found, chosen, hold_out=False).test
    _warn_of_seen(config, found if own else None, [found.classes[label] for label in np.unique(found.labels[indices])])
    read, source = trained.method.test_embedding, ImageSource(images, size=trained.input)
    return embed(trained.embedder, read, source, indices, Processes(device=trained.device), 128), found.labels[indices]


def evaluate_run(
    run: str | Path,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    split: Any = None,
    metrics: Sequence[str] | None = None,
    device: str = "cpu",
) -> dict[str, float]:
    """Scores of a finished run on the test classes of a dataset and split; see `embed_run`."""
    rows, labels = embed_run(run, dataset, split, device)
    return evaluate(rows, labels, metrics)


def _is_own(found: Dataset, given: str | Mapping[str, Any] | Dataset, config: RunConfig, run: str | Path) -> bool:
    """Whether this is the dataset of a run: a registered one by its name, a folder by its path or its images."""
    if found.name != config.dataset_name:
        return False
    if found.name != "folder" or found.fingerprint == load_result(run).data["dataset"]["fingerprint"]:
        return True
    roots = [Path(str(each.get("root"))).resolve() for each in (given, config.dataset) if isinstance(each, Mapping)]
    return len(roots) == 2 and roots[0] == roots[1]


def _warn_of_seen(config: RunConfig, own: Dataset | None, scored: list[str]) -> None:
    """Warn of scored classes that the run was trained on, by their names, in any copy of the images.

    `own` is the dataset of the run, if it is loaded.
    """
    try:
        if config.split == "default":
            split = choose_split(load_dataset(config.dataset) if own is None else own, "default")
        else:
            split = as_split(config.split)
    except OodmlError:  # the images of the run are gone, and the default split with them
        return
    seen = sorted(set(scored) & set(split.train))
    if seen:
        more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
        warnings.warn(
            f"{len(seen)} of the {len(scored)} classes were trained on ({', '.join(seen[:3])}{more}): the scores are "
            "not those of unseen classes.",
            stacklevel=3,
        )
