"""Where a run's numbers are shown next to `metrics.jsonl`: the progress bar, TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.progress import Progress as Bar
from rich.progress import TaskID

from oodml._errors import OodmlError
from oodml._files import atomic_file
from oodml._progress import progress_bar
from oodml.training.job import Job
from oodml.training.progress import Progress


class Logger(Protocol):
    """Anything that takes named numbers at a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    module = "torch.utils.tensorboard"

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        self.writer = _module(self.module, "tensorboard").SummaryWriter(str(out / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    module = "wandb"

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        wandb = _module(self.module, "wandb")
        run_id = _remembered(_id_file(out, "wandb"), lambda: uuid.uuid4().hex)
        self.run = wandb.init(dir=str(out), name=out.name, id=run_id, config=dict(config), resume="allow")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    module = "mlflow"

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        self.mlflow = _module(self.module, "mlflow")

        def create() -> str:
            with self.mlflow.start_run(run_name=out.name) as run:
                return run.info.run_id

        self.mlflow.start_run(run_id=_remembered(_id_file(out, "mlflow"), create))
        self.mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.mlflow.log_metrics({name.replace("@", "_at_").replace(":", "_"): v for name, v in values.items()}, step)

    def close(self) -> None:
        self.mlflow.end_run()


_LOGGERS: dict[str, Callable[[Path, Mapping[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def check_installed(names: str | Iterable[str] | None) -> None:
    """Raise if the package of a logger is not installed; nothing is opened or written."""
    for name in _listed(names):
        if module := getattr(_LOGGERS[name], "module", None):
            _module(module, name)


@contextlib.contextmanager
def open_loggers(names: str | Iterable[str] | None, out: Path, config: Mapping[str, Any]) -> Iterator[list[Logger]]:
    """The loggers by name, closed at the end. A run that fails before its first checkpoint leaves no ID of a service
    behind, so that the next run in its folder is a new one there."""
    try:
        with contextlib.ExitStack() as closing:
            loggers = []
            for name in _listed(names):
                loggers.append(_LOGGERS[name](out, config))
                closing.callback(loggers[-1].close)
            yield loggers
    except BaseException:
        if not (out / "checkpoint.pt").exists():
            for service in ("wandb", "mlflow"):
                _id_file(out, service).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not there, or something else is in it
                out.rmdir()
        raise


class Display:
    """One line for a person (epoch, loss, speed, last scores, time left), and every number to the loggers."""

    def __init__(self, loggers: list[Logger], bar: Bar | None = None, task: TaskID | None = None) -> None:
        self.loggers, self.bar, self.task = loggers, bar, task
        self._scores = ""

    def show_steps(self, progress: Progress, epoch: int) -> None:
        for logger in self.loggers:
            logger.log(progress.step, {"loss": progress.last_loss, "images_per_second": progress.rates[-1]})
        self._update(progress, epoch)

    def show_evaluation(self, progress: Progress, epoch: int) -> None:
        row = progress.history[-1]
        for logger in self.loggers:
            logger.log(row["step"], flat(row))
        shown = [f"{side} {100 * row[side]['recall@1']:.1f}" for side in ("val", "test") if side in row]
        self._scores = " · recall@1 " + ", ".join(shown)
        self._update(progress, epoch)

    def _update(self, progress: Progress, epoch: int) -> None:
        if self.bar is not None and self.task is not None:
            rate, loss = progress.rates[-1], progress.last_loss
            text = f"epoch {epoch + 1}{self._scores} · loss {loss:.3f} · {rate:,.0f} img/s"
            self.bar.update(self.task, completed=progress.step, description=text)


@contextlib.contextmanager
def open_display(job: Job, loggers: list[Logger], start: int) -> Iterator[Display]:
    """A progress bar in the main process, unless the run is quiet."""
    if job.config.quiet or not job.processes.is_main:
        yield Display(loggers)
        return
    with progress_bar() as bar:
        yield Display(loggers, bar, bar.add_task("Training", total=job.stop, completed=start))


def _listed(names: str | Iterable[str] | None) -> Iterable[str]:
    return [names] if isinstance(names, str) else names or ()


def _id_file(out: Path, service: str) -> Path:
    return out / f"{service}.id"


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """Nested numbers with their path as the name: {"val": {"recall@1": x}} -> {"val/recall@1": x}."""
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found.update({f"{key}/{inner}": number for inner, number in flat(value).items()})
        elif isinstance(value, int | float) and key != "step":
            found[key] = float(value)
    return found


def _remembered(path: Path, create: Callable[[], str]) -> str:
    """The ID of the run at a service, stored so that a resumed run is the same one there."""
    if not path.exists():
        run_id = create()
        with atomic_file(path) as temporary:
            temporary.write_text(run_id, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OodmlError(f"logger={package!r} needs the package {package}: pip install {package}.") from error
