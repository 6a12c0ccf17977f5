"""A finished run and the classes it is to be tried on: read together, and checked against one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oodml._errors import OodmlError
from oodml.config import RunConfig, as_split
from oodml.data import Dataset, Images, load_dataset, load_images
from oodml.shift import Split, make_episodes
from oodml.training.adaptation import FEWEST
from oodml.training.embedding import TrainedEmbedder, load_embedder
from oodml.training.result import load_result
from oodml.training.sets import choose_split


@dataclass(frozen=True)
class Target:
    """`split.test` are classes of `data` that the run was not trained on; `notes` is what a reader should know."""

    run: Path
    config: RunConfig
    trained: TrainedEmbedder
    images: Images
    split: Split
    notes: tuple[str, ...] = ()
    at_home: bool = True  # the classes are of the data set the run was trained on

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
        """The same with few-shot episodes in its split: its own, or made on the spot, which is noted."""
        if (count := shots * len(self.split.test)) < FEWEST:
            raise OodmlError(
                f"{shots} images of each of the {len(self.split.test)} test classes of split {self.split.name!r} are "
                f"{count}, and adapting needs {FEWEST}: take more shots, or a split with more test classes."
            )
        have = self.split.episodes.get(shots, [])
        if len(have) >= episodes:
            return self
        if have:
            raise OodmlError(
                f"Split {self.split.name!r} carries {len(have)} episodes of {shots} shots and {episodes} were asked "
                f"for: take episodes={len(have)}, or make more with `oodml splits episodes`."
            )
        made = make_episodes(self.split, self.data, shots=shots, episodes=episodes)
        note = (
            f"Split {self.split.name!r} carries no episodes of {shots} shots; {episodes} were drawn on the spot with "
            "seed 0 (the same every time). `oodml splits episodes` stores them in its file."
        )
        return replace(self, split=made, notes=(*self.notes, note))


def read_target(
    run: str | Path,
    split: Any = None,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    device: torch.device | None = None,
    quiet: bool = False,
) -> Target:
    """Load a run for the test classes of `split`; split and data set default to the run's own.

    Another data set without a split gives that set's default split: none of its classes were trained on.
    """
    device = device or torch.device("cpu")
    found = load_result(run)
    config = RunConfig.of_run(found.path)
    images = _load_pictures(config, load_dataset(config.dataset if dataset is None else dataset), device, quiet)
    data = images.dataset  # without the pictures that could not be read, as the run had it
    same = data.fingerprint == found.data["dataset"]["fingerprint"]
    elsewhere = dataset is not None and not same
    chosen = _choose_split(config, data, split, elsewhere)
    _check_data(config, chosen, data, dataset is None, found.path)
    if not elsewhere:
        _check_unseen(config, data, chosen, found.path)
    notes = []
    if dataset is None and not same:
        notes.append(f"The data set {data.name!r} has changed since the run {found.path.name} was trained.")
    if found.data["selection"] != "val":
        notes.append(
            f"The run was trained on the validation classes too (selection={found.data['selection']!r}); the published "
            "few-shot rows come from models trained without them."
        )
    trained = load_embedder(found.path, str(device))
    trained.embedder.requires_grad_(False)
    return Target(found.path, config, trained, images, chosen, tuple(notes), at_home=not elsewhere)


def _load_pictures(config: RunConfig, data: Dataset, device: torch.device, quiet: bool) -> Images:
    """Decoded pictures, with the training transform of the run; on the device where a backbone may need them there."""
    transforms = data.transforms.override(train=config.transform, cache_side=config.cache_side)
    return load_images(data, device if config.train == "all" else "cpu", quiet=quiet, transforms=transforms)


def _choose_split(config: RunConfig, data: Dataset, split: Any, elsewhere: bool) -> Split:
    if split is None:
        split = "default" if elsewhere else config.split
    return choose_split(data, split) if split == "default" else as_split(split)


def _check_data(config: RunConfig, split: Split, data: Dataset, own: bool, run: Path) -> None:
    """The split must speak of the data set at hand."""
    wanted = split.test_dataset or split.dataset
    if not wanted or wanted == data.name or (data.name == "folder" and Path(wanted).is_absolute()):
        return  # folders all have one name, so a split across two of them has their paths: the classes will tell
    if own:
        raise OodmlError(
            f"The run {run} was trained on {config.dataset_name!r}, and the test classes of split {split.name!r} are "
            f"of {wanted!r}. To try it on that set give dataset={wanted!r} too (with its root); else take a split of "
            f"{config.dataset_name!r}."
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
