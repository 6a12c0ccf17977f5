"""From an embedder in training to scores: embed a set, shared among the processes, and evaluate it once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodml.evaluation import evaluate
from oodml.evaluation.kmeans import kmeans
from oodml.evaluation.structure import structure
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.training.distributed import Processes, gather_uneven
from oodml.training.sources import Source


@torch.no_grad()
def embed(
    embedder: Embedder,
    read: Callable[[Outputs], Tensor],
    source: Source,
    indices: np.ndarray,
    processes: Processes,
    batch_size: int,
) -> Tensor:
    """What `read` takes from the outputs for every image, in the order of `indices`: (n, d) float32 on the device.

    Every pass has `batch_size` images (the last one is filled up), so a compiled backbone meets one shape.
    """
    was_training = embedder.training
    embedder.eval()
    mine = processes.share(indices)
    passes = max(1, -(-len(mine) // batch_size))  # of a share that is empty too: its rows have a width
    filled = np.resize(mine if len(mine) else indices[:1], passes * batch_size)
    parts = [filled[start : start + batch_size] for start in range(0, len(filled), batch_size)]
    rows = torch.cat([read(embedder(source.evaluate(part))).float() for part in parts])[: len(mine)]
    embedder.train(was_training)
    return gather_uneven(rows, len(indices))


def untrained_reader(outputs: Outputs) -> Tensor:
    """Pooled, L2-normalised features: what the backbone offers before training, without a head."""
    return F.normalize(outputs.features.avg, dim=-1)


def pooled_reader(outputs: Outputs) -> Tensor:
    """All pooled features side by side; `as_pooled` takes them apart."""
    return torch.cat([part for part in outputs.features if part is not None], dim=-1)


def as_pooled(rows: Tensor, feature_dim: int) -> Pooled:
    return Pooled(*rows.split(feature_dim, dim=-1))


def score(
    embeddings: Tensor, labels: np.ndarray, metrics: Iterable[str] | None, processes: Processes
) -> dict[str, float]:
    """Scores as plain floats; the main process computes them, all have them. None: every default metric."""
    found: dict[str, float] | None = None
    if processes.is_main:
        wanted = None if metrics is None else tuple(metrics)
        found = {name: float(value) for name, value in evaluate(embeddings, labels, wanted).items()}
    return processes.broadcast(found)


def cluster(rows: Tensor, k: int, seed: int, processes: Processes) -> Tensor:
    """The k-means cluster of each row, (n,) int64 on its device; the main process computes it, all have it."""
    found = kmeans(rows, k, seed).labels.cpu() if processes.is_main else None
    return processes.broadcast(found).to(rows.device)


DROPPED = 10  # leading singular values that S2SD (figure 2) leaves out of ρ


def shape(embeddings: Tensor, labels: np.ndarray, processes: Processes) -> dict[str, float]:
    """Structure metrics that are single numbers."""
    found: dict[str, float] | None = None
    if processes.is_main:
        values = structure(embeddings, labels)
        found = {name: float(value) for name, value in values.items() if np.ndim(value) == 0}
        if min(embeddings.shape) > 2 * DROPPED:
            found[f"rho:drop{DROPPED}"] = float(structure(embeddings, labels, ["rho"], drop=DROPPED)["rho"])
    return processes.broadcast(found)
