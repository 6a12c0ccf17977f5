"""What a person sees of a run: one line with epoch, loss, speed, last scores and the time left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.progress import Progress as Bar
from rich.progress import TaskID

from oodml._progress import progress_bar
from oodml.training.job import Job
from oodml.training.loggers import Logger, flat
from oodml.training.progress import Progress


class Console:
    """Shows a run and hands its numbers to the loggers."""

    def __init__(self, loggers: list[Logger], bar: Bar | None = None, task: TaskID | None = None) -> None:
        self.loggers, self.bar, self.task = loggers, bar, task
        self._scores = ""

    def steps(self, progress: Progress, epoch: int) -> None:
        for logger in self.loggers:
            logger.log(progress.step, {"loss": progress.last_loss, "images_per_second": progress.rates[-1]})
        self._show(progress, epoch)

    def evaluation(self, progress: Progress, epoch: int) -> None:
        row = progress.history[-1]
        for logger in self.loggers:
            logger.log(row["step"], flat(row))
        shown = [f"{side} {100 * row[side]['recall@1']:.1f}" for side in ("val", "test") if side in row]
        self._scores = " · recall@1 " + ", ".join(shown)
        self._show(progress, epoch)

    def _show(self, progress: Progress, epoch: int) -> None:
        if self.bar is not None and self.task is not None:
            rate, loss = progress.rates[-1], progress.last_loss
            text = f"epoch {epoch + 1}{self._scores} · loss {loss:.3f} · {rate:,.0f} img/s"
            self.bar.update(self.task, completed=progress.step, description=text)


@contextlib.contextmanager
def console(job: Job, loggers: list[Logger], start: int) -> Iterator[Console]:
    """A live bar in the main process, unless the run is quiet."""
    if job.config.quiet or not job.processes.is_main:
        yield Console(loggers)
        return
    with progress_bar() as bar:
        yield Console(loggers, bar, bar.add_task("Training", total=job.stop, completed=start))
