"""The training loop, from top to bottom.

What is special about a method is in the method, what is special about several processes in `distributed`; nothing in a
step waits for the device.
"""

from __future__ import annotations

import numpy as np

from oodml.training import distributed
from oodml.training.checkpoint import Checkpoints
from oodml.training.job import Job
from oodml.training.loggers import Display
from oodml.training.optimiser import set_learning_rates, update
from oodml.training.progress import BestModels, Progress, Stopwatch
from oodml.training.scoring import embed_set, evaluate_model, fit_features
from oodml.training.stopping import Interrupted, LossMonitor, StopRequest


def fit(
    job: Job, progress: Progress, best: BestModels, checkpoints: Checkpoints, display: Display, stop: StopRequest
) -> None:
    """Train from `progress.step` to the end of the job: evaluate, keep the best models, save."""
    config, embedder, method = job.config, job.embedder, job.method
    warmup_steps = round(float(config.warmup or 0) * job.steps_per_epoch)
    losses = LossMonitor(config.log_every * method.batches_per_step, job.processes.device)
    clock = Stopwatch()

    def begin_epoch(epoch: int) -> None:
        method.on_epoch_start(epoch, embedder, lambda: fit_features(job))
        if getattr(job.sampler, "uses_embeddings", False):
            rows = embed_set(job, job.sets.fit)
            job.sampler.update(np.arange(len(rows)), rows.cpu().numpy())

    for step, epoch, batches in job.steps(progress.step, begin_epoch):
        embedder.backbone_frozen = step < warmup_steps
        set_learning_rates(job.optimiser, job.schedule, step)
        take_step(job, step, batches, losses, checkpoints.last_saved)
        progress.step = step + 1

        evaluates, saves = job.evaluates_after(step + 1), job.saves_after(step + 1)
        asked = bool(stop) and job.processes.count == 1  # several processes agree to stop at a log line
        if not (losses.is_full or evaluates or saves or asked):
            continue
        values = losses.read(checkpoints.last_saved)  # the only place where the host waits for the device
        progress.add_losses(values, images=len(values) * len(batches[0]), seconds=clock.lap())
        display.show_steps(progress, epoch)
        if evaluates:
            checkpoints.check_weights(progress.step)
            evaluate_model(job, progress, best)
            display.show_evaluation(progress, epoch)
            clock.lap()
        stopping = checkpoints.should_stop(stop)
        if evaluates or saves or stopping:
            checkpoints.save(progress, best)
        if stopping:
            message = f"Stopped by {stopping} after step {progress.step}; the same command resumes from there."
            raise Interrupted(message, stopping)


def take_step(job: Job, step: int, batches: list[np.ndarray], losses: LossMonitor, last_saved: str) -> None:
    """One update per batch; nothing here waits for the device."""
    embedder, method, optimiser = job.embedder, job.method, job.optimiser
    for turn, positions in enumerate(batches):
        batch = job.batch(positions, step, turn)
        with losses.explaining(step, positions, last_saved):
            loss = method.loss(batch, embedder, step)
        loss.backward()
        distributed.sum_gradients(embedder.backbone)
        update(optimiser)
        losses.record(step, positions, loss)
    method.after_step(embedder, step)
