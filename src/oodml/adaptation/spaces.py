"""The spaces inside a finished run: the generalisation gap of each, and neighbours across classes in them.

Sharing Matters compares, on train and on test classes, the embeddings that a run trained, the features below them, and
an embedding whose weights are drawn anew (table 5), and shows neighbours of another class (figure 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml.config import RunConfig
from oodml.data import Dataset, load_dataset
from oodml.evaluation import evaluate
from oodml.models import extract_features, own_seed
from oodml.models.embedder import Embedder, Outputs
from oodml.models.heads import make_head
from oodml.training.data import FeatureSource, ImageSource, Source, choose_sets, choose_split, open_images
from oodml.training.distributed import Processes
from oodml.training.embedder import TrainedEmbedder, load_embedder
from oodml.training.result import check_same_images, load_result
from oodml.training.scoring import embed, normalised_features
from oodml.training.seeds import child_seed

SIDES = ("train", "test")
EMBEDDING, FEATURES, RESET = "embedding", "features", " (weights drawn anew)"


@dataclass(frozen=True)
class Spaces:
    """Embeddings of one side's images in every space of a run: name -> (n, d) float32, in the order of `indices`."""

    rows: dict[str, Tensor]
    labels: np.ndarray
    indices: np.ndarray  # positions in the dataset
    dataset: Dataset  # without the images that could not be read


def run_spaces(
    run: str | Path, side: str = "test", dataset: Dataset | None = None, reset: bool = False, device: str = "cpu"
) -> Spaces:
    """The test embedding, the other spaces its method reports (φ and φ* of `sharing`), the pooled, normalised features.

    `reset` draws the weights of all heads anew: the embeddings then have no information beyond the features below them.
    """
    if side not in SIDES:
        raise unknown_name("side", side, SIDES)
    trained, config = load_embedder(run, device), RunConfig.of_run(run)
    images = open_images(dataset if dataset is not None else load_dataset(config.dataset), trained.device)
    found = images.dataset
    check_same_images(load_result(run), found)
    sets = choose_sets(found, choose_split(found, config.split), hold_out=config.selection == "val")
    indices = sets.fit if side == "train" else sets.test
    if reset:
        _draw_heads_anew(trained.embedder, config.seed)
    widths: dict[str, int] = {}

    def read(outputs: Outputs) -> Tensor:
        spaces = _spaces_of(trained, outputs)
        widths.update({name: space.shape[1] for name, space in spaces.items()})
        return torch.cat(list(spaces.values()), dim=1)

    source = _cached_features(trained, found) if config.train == "head" else ImageSource(images, size=trained.input)
    rows = embed(trained.embedder, read, source, indices, Processes(device=trained.device), 128).cpu()
    parts = dict(zip(widths, rows.split(list(widths.values()), dim=1), strict=True))
    return Spaces(parts, found.labels[indices], indices, found)


def generalisation_gap(
    run: str | Path, dataset: Dataset | None = None, metric: str = "recall@1", device: str = "cpu"
) -> list[dict[str, Any]]:
    """Table 5: for each space of a run its size, its score on train and on test classes, and the gap between them.

    The train classes are those the run was fitted on. A gap of −0.1 means ten points less on unseen classes.
    """
    dataset = dataset if dataset is not None else load_dataset(RunConfig.of_run(run).dataset)
    found: dict[str, dict[str, Any]] = {}
    for reset in (False, True):
        for side in SIDES:
            spaces = run_spaces(run, side, dataset, reset, device)
            for name, rows in spaces.rows.items():
                if reset and name == FEATURES:  # they do not depend on the heads
                    continue
                row = found.setdefault(name + RESET * reset, {"space": name + RESET * reset, "dim": rows.shape[1]})
                row[side] = float(evaluate(rows, spaces.labels, [metric])[metric])
    return [{**row, "gap": row["test"] - row["train"]} for row in found.values()]


def neighbours_across_classes(
    spaces: Spaces, queries: np.ndarray, k: int = 5
) -> dict[str, list[list[tuple[int, float]]]]:
    """Figure 3: for each space and query the k nearest images of *another* class, (place, distance), nearest first.

    `queries` are places in `spaces`; so are the neighbours. `spaces.indices[places]` are positions in the dataset.
    """
    labels = torch.from_numpy(spaces.labels)
    chosen = torch.from_numpy(np.asarray(queries, dtype=np.int64))
    same = labels[chosen][:, None] == labels
    if int((~same).sum(1).min()) < k:
        raise OodmlError(f"A query has fewer than {k} images of other classes; ask for a smaller k.")
    nearest = {}
    for name, rows in spaces.rows.items():
        distances = torch.cdist(rows[chosen], rows).masked_fill(same, torch.inf)
        found = distances.topk(k, dim=1, largest=False)
        pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        nearest[name] = [list(zip(places, values, strict=True)) for places, values in pairs]
    return nearest


def _cached_features(trained: TrainedEmbedder, dataset: Dataset) -> Source:
    """The features on which a run with train="head" was trained; they are in the cache."""
    embedder = trained.embedder
    pooling = "avg+max" if embedder.needs_max else "avg"
    features = extract_features(dataset, embedder.backbone, size=trained.input, pooling=pooling, device=trained.device)
    return FeatureSource(features[None], trained.device)


def _spaces_of(trained: TrainedEmbedder, outputs: Outputs) -> dict[str, Tensor]:
    return {
        EMBEDDING: trained.method.test_embedding(outputs),
        **trained.method.watched(outputs),
        FEATURES: normalised_features(outputs),
    }


def _draw_heads_anew(embedder: Embedder, seed: int) -> None:
    with own_seed(child_seed(seed, "heads drawn anew")):
        for name, head in embedder.specs.items():
            embedder.heads[name] = make_head(head, embedder.feature_dim).to(embedder.feature_scale.device)
