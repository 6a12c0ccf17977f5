"""From an embedder in training to scores: embed a set once, evaluate it once, keep the model if it is the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._errors import OodmlError
from oodml.encoders import score_encoder
from oodml.evaluation import evaluate
from oodml.evaluation.structure import structure
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.training import distributed
from oodml.training.data import Source
from oodml.training.distributed import Processes, gather_uneven
from oodml.training.job import Job
from oodml.training.progress import BEST_ON_TEST, LAST, SELECTED, BestModels, Progress

TEST_EMBEDDINGS = "test_embeddings"
DROPPED = 10  # leading singular values that S2SD (figure 2) leaves out of ρ


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

    Every pass has `batch_size` images (the last one is filled up), so a compiled backbone sees one shape.
    """
    was_training = embedder.training
    embedder.eval()
    mine = processes.share(indices)
    passes = max(1, -(-len(mine) // batch_size))  # also of an empty share: its rows have a width
    filled = np.resize(mine if len(mine) else indices[:1], passes * batch_size)
    parts = [filled[start : start + batch_size] for start in range(0, len(filled), batch_size)]
    rows = torch.cat([read(embedder(source.evaluate(part))).float() for part in parts])[: len(mine)]
    embedder.train(was_training)
    return gather_uneven(rows, len(indices))


def embed_set(job: Job, indices: np.ndarray, read: Callable[[Outputs], Tensor] | None = None) -> Tensor:
    """`embed` for images of a run; `read` defaults to the test embedding of its method."""
    read = read or job.method.test_embedding
    return embed(job.embedder, read, job.source, indices, job.processes, job.eval_batch)


def normalised_features(outputs: Outputs) -> Tensor:
    """Pooled, L2-normalised features, without a head."""
    return F.normalize(outputs.features.avg, dim=-1)


def fit_features(job: Job) -> tuple[Pooled, Tensor]:
    """Pooled features of the fit set in the evaluation view, and its labels, for methods that need all of it."""
    rows = embed_set(job, job.sets.fit, pooled_features)
    return Pooled(*rows.split(job.embedder.feature_dim, dim=-1)), job.labels


def pooled_features(outputs: Outputs) -> Tensor:
    """All pooled features in one row."""
    return torch.cat([part for part in outputs.features if part is not None], dim=-1)


def score(
    embeddings: Tensor, labels: np.ndarray, metrics: Iterable[str] | None, processes: Processes
) -> dict[str, float]:
    """Scores as plain floats, computed by the main process and sent to all. None: every default metric."""
    found: dict[str, float] | None = None
    if processes.is_main:
        wanted = None if metrics is None else tuple(metrics)
        found = {name: float(value) for name, value in evaluate(embeddings, labels, wanted).items()}
    return processes.broadcast(found)


def score_untrained(job: Job) -> dict[str, float]:
    """Scores of the backbone before training: pooled, normalised features, without a head."""
    rows, found = embed_set(job, job.sets.test, normalised_features), None
    if job.processes.is_main:
        label, metrics = job.config.backbone or "", job.config.metrics
        (row,) = score_encoder(lambda _: rows, job.dataset, [job.split], metrics, label=label, kind="untrained")
        found = row.scores
    return job.processes.broadcast(found)


def structure_scores(embeddings: Tensor, labels: np.ndarray, processes: Processes) -> dict[str, float]:
    """Structure metrics that are single numbers."""
    found: dict[str, float] | None = None
    if processes.is_main:
        values = structure(embeddings, labels)
        found = {name: float(value) for name, value in values.items() if np.ndim(value) == 0}
        if min(embeddings.shape) > 2 * DROPPED:
            found[f"rho:drop{DROPPED}"] = float(structure(embeddings, labels, ["rho"], drop=DROPPED)["rho"])
    return processes.broadcast(found)


def evaluate_model(job: Job, progress: Progress, best: BestModels) -> None:
    """Add a row to the history, and keep the model if the run's selection prefers it to the one it has."""
    config, labels = job.config, job.dataset.labels
    metric = config.selection_metric
    watched = tuple(dict.fromkeys((metric, "recall@1")))
    epoch = progress.step / job.steps_per_epoch
    distributed.average_buffers(job.embedder)

    test, other_spaces = _test_embeddings(job)
    if not torch.isfinite(test).all():
        raise OodmlError(
            f"The embeddings are no longer finite after step {progress.step}, although losses and weights are. Lower "
            "the learning rate, or use precision='fp32'."
        )
    row: dict[str, Any] = {
        "step": progress.step,
        "epoch": round(epoch, 4),
        "loss": progress.take_mean_loss(),
        "lr": job.optimiser.param_groups[0]["lr"],
    }
    row["test"] = _score_test(job, test, watched)
    for name, space in other_spaces.items():
        row.setdefault("watched", {})[name] = score(space, labels[job.sets.test], watched, job.processes)
    if facts := job.method.facts():
        row["facts"] = facts
    if len(job.sets.val):
        row["val"] = score(embed_set(job, job.sets.val), labels[job.sets.val], watched, job.processes)
    row["train_seconds"] = round(progress.train_seconds, 3)
    progress.history.append(row)

    def with_weights() -> dict[str, Tensor]:
        return {**job.embedder.test_weights(backbone=config.train == "all"), TEST_EMBEDDINGS: test}

    by_selection = {"val": row.get("val", {}).get(metric), "test": row["test"][metric], "last": float(progress.step)}
    best.offer(SELECTED, by_selection[config.selection or "last"], progress.step, epoch, with_weights)
    best.offer(BEST_ON_TEST, row["test"][metric], progress.step, epoch, lambda: {TEST_EMBEDDINGS: test})
    if progress.step == job.stop:
        best.offer(LAST, float(progress.step), progress.step, epoch, lambda: {TEST_EMBEDDINGS: test})


def _score_test(job: Job, test: Tensor, watched: tuple[str, ...]) -> dict[str, float]:
    """The watched metrics of the test classes; with selection="test" all, since each reports its own best epoch."""
    labels, metrics = job.dataset.labels[job.sets.test], job.config.metrics
    if job.config.selection != "test":
        return score(test, labels, watched, job.processes)
    found = score(test, labels, metrics, job.processes)
    missing = [name for name in watched if name not in found]
    return found | (score(test, labels, missing, job.processes) if missing else {})


def _test_embeddings(job: Job) -> tuple[Tensor, dict[str, Tensor]]:
    """Embeddings of the test images, in their order, and the other spaces that the method reports."""
    widths: dict[str, int] = {}

    def read(outputs: Outputs) -> Tensor:
        spaces = {"": job.method.test_embedding(outputs), **job.method.watched(outputs)}
        widths.update({name: space.shape[1] for name, space in spaces.items()})
        return torch.cat(list(spaces.values()), dim=1)

    test, *others = embed_set(job, job.sets.test, read).split(list(widths.values()), dim=1)
    return test.contiguous(), dict(zip(list(widths)[1:], others, strict=True))
