"""The training loop, from top to bottom.

What is special about a method stays in the method, what is special about several processes in `distributed`; nothing
in a step waits for the device.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from oodml.models.embedder import Pooled
from oodml.training import distributed
from oodml.training.console import Console
from oodml.training.job import Job
from oodml.training.judge import judge
from oodml.training.optimiser import update
from oodml.training.progress import Keeper, Progress, Stopwatch
from oodml.training.saving import Saver
from oodml.training.schedule import set_learning_rates
from oodml.training.scoring import as_pooled, embed, pooled_reader
from oodml.training.signals import Interrupted, StopRequest
from oodml.training.watch import LossWatch


def fit(job: Job, progress: Progress, keeper: Keeper, saver: Saver, console: Console, stop: StopRequest) -> None:
    """Train from `progress.step` to the end of the job, evaluating, keeping the best and saving on the way."""
    config, embedder, method = job.config, job.embedder, job.method
    warmup_steps = round(float(config.warmup or 0) * job.steps_per_epoch)
    watch = LossWatch(config.log_every * method.batches_per_step, job.processes.device)
    clock = Stopwatch()

    def begin_epoch(epoch: int) -> None:
        method.on_epoch_start(epoch, embedder, lambda: fit_features(job))
        refresh_sampler(job)

    for step, epoch, batches in job.steps(progress.step, begin_epoch):
        embedder.backbone_frozen = step < warmup_steps
        set_learning_rates(job.optimiser, job.schedule, step)
        take_step(job, step, batches, watch, saver.last_good)
        progress.step = step + 1

        evaluates, saves = job.evaluates_after(step + 1), job.saves_after(step + 1)
        asked = bool(stop) and job.processes.count == 1  # several processes agree to stop at a log line
        if not (watch.is_full or evaluates or saves or asked):
            continue
        losses = watch.read(saver.last_good)  # the only place where the host waits for the device
        progress.note(losses, images=len(losses) * len(batches[0]), seconds=clock.lap())
        console.steps(progress, epoch)
        if evaluates:
            saver.check_weights(job, progress.step)
            judge(job, progress, keeper)
            console.evaluation(progress, epoch)
            clock.lap()
        stopping = saver.should_stop(stop)
        if evaluates or saves or stopping:
            saver.save(job, progress, keeper)
        if stopping:
            told = f"Stopped by {stopping} after step {progress.step}; the same command goes on from there."
            raise Interrupted(told, stopping)


def take_step(job: Job, step: int, batches: list[np.ndarray], watch: LossWatch, last_good: str) -> None:
    """One update a batch; nothing here waits for the device."""
    embedder, method, optimiser = job.embedder, job.method, job.optimiser
    for turn, positions in enumerate(batches):
        batch = job.batch(positions, step, turn)
        with watch.explaining(step, positions, last_good):
            loss = method.loss(batch, embedder, step)
        loss.backward()
        distributed.sum_gradients(embedder.backbone)
        update(optimiser)
        watch.record(step, positions, loss)
    method.after_step(embedder, step)


def fit_features(job: Job) -> tuple[Pooled, Tensor]:
    """Pooled features of the fit set in the evaluation view, and its labels, for methods that look at all of it."""
    rows = embed(job.embedder, pooled_reader, job.source, job.sets.fit, job.processes, job.eval_batch)
    return as_pooled(rows, job.embedder.feature_dim), job.labels


def refresh_sampler(job: Job) -> None:
    """Show the present embeddings to a batch sampler that looks at them (`uses_embeddings`)."""
    if getattr(job.sampler, "uses_embeddings", False):
        rows = embed(job.embedder, job.method.test_embedding, job.source, job.sets.fit, job.processes, job.eval_batch)
        job.sampler.update(np.arange(len(rows)), rows.cpu().numpy())
