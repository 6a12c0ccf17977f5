"""Cross-dataset transfer (ooDML, supplement C): a run trained on one dataset, scored on the classes of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from oodml.adaptation.adapt import AdaptOptions, adapt
from oodml.adaptation.episodes import cached_views
from oodml.adaptation.fine_tuning import last_layers, stacked_embedding
from oodml.adaptation.target import Target, read_target
from oodml.data import Dataset, load_dataset
from oodml.encoders import score_encoder
from oodml.evaluation import evaluate
from oodml.models import extract_features
from oodml.shift import Split, SplitDistances
from oodml.training import distributed
from oodml.training.data import choose_split, open_images
from oodml.training.embedder import initial_backbone

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
    """Scores of a finished run on the test classes of another dataset, and their distance from its training classes.

    Args:
        dataset, split: the target; by default its default test classes.
        shots: numbers of labelled images per class to adapt to as well, each by `oodml.few_shot` with `options`.
        fid_backbone: network whose class-mean features measure the distance between the classes the run was trained on
            and the target's test classes; None: not measured.

    Returns:
        {"scores": of the run, "untrained": of its backbone before training (pooled, normalised), "fid": distance or
        None, "few": {shots: FewShot}, "notes": [...]}.
    """
    adapting = AdaptOptions(episodes=episodes, quiet=quiet, **options)
    target = read_target(run, split, dataset, distributed.join(device).device, quiet)
    adapted_to = {each: target.with_episodes(each, episodes) for each in shots}  # raises before anything is computed
    labels = target.data.labels[target.test]
    scores = evaluate(_embeddings(target, quiet), labels, metrics)
    backbone, side = initial_backbone(target.config), target.trained.input
    features = extract_features(target.data, backbone, size=side, device=device, quiet=quiet)
    before: dict[str, Any] = {"label": backbone.name, "kind": "untrained", "forms": ["normalised"]}
    (untrained,) = score_encoder(features.__getitem__, target.data, [target.split], metrics, **before)
    return {
        "scores": {name: float(value) for name, value in scores.items()},
        "untrained": untrained.scores,
        "fid": None if fid_backbone is None else distance(target, fid_backbone, device, quiet),
        "few": {each: adapt(with_episodes, each, adapting) for each, with_episodes in adapted_to.items()},
        "notes": list(target.notes),
    }


def transfer_json(found: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `transfer` as plain data."""
    return {**found, "few": {str(shots): each.to_json() for shots, each in found["few"].items()}}


def distance(target: Target, backbone: str, device: str, quiet: bool) -> float:
    """FID over class means between the train classes of the run and the test classes of its target."""
    own = open_images(load_dataset(target.config.dataset), "cpu", quiet=quiet).dataset
    trained_on = choose_split(own, target.config.split).train
    sides = [
        (extract_features(d, backbone, device=device, quiet=quiet), d.labels, d.classes) for d in (own, target.data)
    ]
    split = Split(trained_on, target.split.test, dataset="of the run", test_dataset="of its target")
    return SplitDistances(*sides[0], test=sides[1]).fid(split)


def _embeddings(target: Target, quiet: bool) -> Tensor:
    trained = target.trained
    layers = {name: value[None] for name, value in last_layers(trained.embedder).items()}
    inputs = cached_views(target, [], 0, quiet).evaluation(target.test)
    return stacked_embedding(trained.embedder, trained.method)(layers, inputs[None])[0]
