"""Where a run's numbers go beside `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow, one small interface."""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from oodml._errors import OodmlError
from oodml._files import atomic_file


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
        known = _remembered(_id_file(out, "wandb"), lambda: uuid.uuid4().hex)
        self.run = wandb.init(dir=str(out), name=out.name, id=known, config=dict(config), resume="allow")

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
    """Raise for a package that is not installed, and say what to install; nothing is opened or written."""
    for name in _listed(names):
        if module := getattr(_LOGGERS[name], "module", None):
            _module(module, name)


@contextlib.contextmanager
def open_loggers(names: str | Iterable[str] | None, out: Path, config: Mapping[str, Any]) -> Iterator[list[Logger]]:
    """The loggers by name, closed at the end; a service is to know the next run by another name if this one leaves no
    checkpoint to go on from."""
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
    """The name under which a service knows the run: a run that goes on after a stop is the same one there."""
    if not path.exists():
        known = create()
        with atomic_file(path) as temporary:
            temporary.write_text(known, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OodmlError(f"logger={package!r} needs the package {package}: pip install {package}.") from error
