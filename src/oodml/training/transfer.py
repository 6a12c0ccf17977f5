"""Cross-data-set transfer (ooDML, supplement C): a run trained on one data set, tried on the classes of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oodml.data import Dataset, load_dataset, load_images
from oodml.evaluation import evaluate
from oodml.models import extract_features
from oodml.shift import Split, SplitDistances
from oodml.training import distributed
from oodml.training.adaptation import last_layers, stacked_embedding
from oodml.training.fewshot import few_shot
from oodml.training.initial import initial_backbone
from oodml.training.inputs import cached_views
from oodml.training.sets import choose_split
from oodml.training.target import Target, read_target

FID_BACKBONE = "tf_efficientnet_lite0"


def transfer(
    run: str | Path,
    dataset: str | Mapping[str, Any] | Dataset,
    split: Any = "default",
    *,
    shots: Sequence[int] = (),
    episodes: int = 10,
    metrics: Sequence[str] | None = None,
    fid_backbone: str | None = FID_BACKBONE,
    device: str = "auto",
    quiet: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Scores of a finished run on the test classes of another data set, and how far away these are.

    Args:
        dataset, split: the target; its default test classes unless told otherwise.
        shots: numbers of labelled images a class to adapt to as well, each by `oodml.few_shot`, which `options` go to.
        fid_backbone: network whose class-mean features measure the distance between the classes the run was trained on
            and the target's test classes; None: not measured.

    Returns:
        {"scores": of the run, "untrained": of its backbone before training (pooled, normalised), "fid": distance or
        None, "few": {shots: FewShot}, "notes": [...]}.
    """
    target = read_target(run, split, dataset, distributed.join(device).device, quiet)
    for each in shots:
        target.with_episodes(each, episodes)  # refuses what cannot be drawn, before anything is computed
    adapting: dict[str, Any] = {"dataset": target.data, "device": device, "quiet": quiet, **options}
    return {
        "scores": _scores(target, _embeddings(target, quiet), metrics),
        "untrained": _scores(target, _untrained(target, device, quiet), metrics),
        "fid": None if fid_backbone is None else distance(target, fid_backbone, device, quiet),
        "few": {each: few_shot(run, target.split, each, episodes, **adapting) for each in shots},
        "notes": list(target.notes),
    }


def transfer_json(found: Mapping[str, Any]) -> dict[str, Any]:
    """What `transfer` found as plain data."""
    return {**found, "few": {str(shots): each.to_json() for shots, each in found["few"].items()}}


def distance(target: Target, backbone: str, device: str, quiet: bool) -> float:
    """FID over class means between the train classes of the run and the test classes of its target."""
    own = load_images(load_dataset(target.config.dataset), quiet=quiet).dataset
    trained_on = choose_split(own, target.config.split).train
    sides = [
        (extract_features(d, backbone, device=device, quiet=quiet), d.labels, d.classes) for d in (own, target.data)
    ]
    split = Split(trained_on, target.split.test, dataset="of the run", test_dataset="of its target")
    return SplitDistances(*sides[0], test=sides[1]).fid(split)


def _embeddings(target: Target, quiet: bool) -> Any:
    trained = target.trained
    layers = {name: value[None] for name, value in last_layers(trained.embedder).items()}
    inputs = cached_views(target, [], 0, quiet).evaluation(target.test)
    return stacked_embedding(trained.embedder, trained.method)(layers, inputs[None])[0]


def _untrained(target: Target, device: str, quiet: bool) -> np.ndarray:
    backbone, side = initial_backbone(target.config), target.trained.input
    rows = extract_features(target.data, backbone, size=side, device=device, quiet=quiet)[target.test]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)


def _scores(target: Target, rows: Any, metrics: Sequence[str] | None) -> dict[str, float]:
    found = evaluate(rows, target.data.labels[target.test], metrics)
    return {name: float(value) for name, value in found.items()}
