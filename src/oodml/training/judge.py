"""Evaluation inside a run: score validation and test classes, keep what is best on each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.models.embedder import Outputs
from oodml.training import distributed
from oodml.training.job import Job
from oodml.training.progress import BEST_ON_TEST, SELECTED, Keeper, Progress
from oodml.training.scoring import embed, score

TEST_EMBEDDINGS = "test_embeddings"
LAST = "last"


def judge(job: Job, progress: Progress, keeper: Keeper) -> None:
    """One row of the history; the model is kept if the run's way of selection prefers it to what it has."""
    config, labels = job.config, job.dataset.labels
    metric = config.selection_metric
    watched = tuple(dict.fromkeys((metric, "recall@1")))
    epoch = progress.step / job.steps_per_epoch
    distributed.average_buffers(job.embedder)

    test, watched_spaces = test_embeddings(job)
    if not torch.isfinite(test).all():
        raise OodmlError(
            f"The embeddings are no longer finite after step {progress.step}, although losses and weights are. Lower "
            "the learning rate, or use precision='fp32'."
        )
    row: dict[str, Any] = {
        "step": progress.step,
        "epoch": round(epoch, 4),
        "loss": progress.take_loss(),
        "lr": job.optimiser.param_groups[0]["lr"],
    }
    row["test"] = score_test(job, test, watched)
    for name, space in watched_spaces.items():
        row.setdefault("watched", {})[name] = score(space, labels[job.sets.test], watched, job.processes)
    if facts := job.method.facts():
        row["facts"] = facts
    if len(job.sets.val):
        val = embed(job.embedder, job.method.test_embedding, job.source, job.sets.val, job.processes, job.eval_batch)
        row["val"] = score(val, labels[job.sets.val], watched, job.processes)
    row["train_seconds"] = round(progress.train_seconds, 3)
    progress.history.append(row)

    def with_weights() -> dict[str, Tensor]:
        return {**job.embedder.test_weights(backbone=config.train == "all"), TEST_EMBEDDINGS: test}

    judged_by = {"val": row.get("val", {}).get(metric), "test": row["test"][metric], "last": float(progress.step)}
    keeper.offer(SELECTED, judged_by[config.selection or "last"], progress.step, epoch, with_weights)
    keeper.offer(BEST_ON_TEST, row["test"][metric], progress.step, epoch, lambda: {TEST_EMBEDDINGS: test})
    if progress.step == job.stop:
        keeper.offer(LAST, float(progress.step), progress.step, epoch, lambda: {TEST_EMBEDDINGS: test})


def score_test(job: Job, test: Tensor, watched: tuple[str, ...]) -> dict[str, float]:
    """The watched metrics of the test classes; every metric where each will report its own best epoch."""
    labels, metrics = job.dataset.labels[job.sets.test], job.config.metrics
    if job.config.selection != "test":
        return score(test, labels, watched, job.processes)
    found = score(test, labels, metrics, job.processes)
    missing = [name for name in watched if name not in found]
    return found | (score(test, labels, missing, job.processes) if missing else {})


def test_embeddings(job: Job) -> tuple[Tensor, dict[str, Tensor]]:
    """Embeddings of the test classes, in the order of the test images, and the spaces the method wants watched."""
    widths: dict[str, int] = {}

    def read(outputs: Outputs) -> Tensor:
        spaces = {"": job.method.test_embedding(outputs), **job.method.watched(outputs)}
        widths.update({name: space.shape[1] for name, space in spaces.items()})
        return torch.cat(list(spaces.values()), dim=1)

    rows = embed(job.embedder, read, job.source, job.sets.test, job.processes, job.eval_batch)
    test, *others = rows.split(list(widths.values()), dim=1)
    return test.contiguous(), dict(zip(list(widths)[1:], others, strict=True))
