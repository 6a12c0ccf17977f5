"""The folder of a run: its result, with every number under a name that says what it is, and what else may be in it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from oodml._errors import OodmlError
from oodml._files import check_holds_only, check_writable
from oodml.config import RunConfig
from oodml.config.identity import NOT_HASHED
from oodml.data import Dataset

FORMAT = 1
# By one of these the folder of a run is recognised; a run writes them first.
_MARKS = ("config.yaml", "result.json", "checkpoint.pt", "search", "tensorboard", "wandb.id", "mlflow.id")
PACKAGES = ("oodml", "torch", "timm", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Result:
    """What a run found.

    scores        every metric on the test classes: of the model that `selection` chose, or with selection="test" the
                  maximum of each metric over all evaluations, as the papers report it (a result without maxima, from
                  before that rule, has all metrics at the best recall@1). `data["selected"]["scores"]` are always those
                  of the chosen model.
    untrained     the same of the backbone before training: pooled, L2-normalised features, no head
    path          the run's folder
    data          all of `result.json`
    """

    scores: dict[str, float]
    untrained: dict[str, float]
    path: Path
    data: dict[str, Any] = field(repr=False)

    @property
    def gain(self) -> dict[str, float]:
        """Scores minus untrained."""
        return gain(self.scores, self.untrained)

    @property
    def last(self) -> dict[str, float]:
        """Scores of the last evaluation."""
        return self.data["last"]["scores"]

    @property
    def best_on_test(self) -> dict[str, float]:
        """Scores of the epoch that is best on the test classes, which no valid selection could know."""
        return self.data["best_on_test"]["scores"]

    @property
    def structure(self) -> dict[str, dict[str, float]]:
        """Structure metrics on train and test classes."""
        return self.data["structure"]

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per evaluation, as in metrics.jsonl."""
        lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def load_result(path: str | Path) -> Result:
    """Read a finished run."""
    file = Path(path) / "result.json"
    if not file.parent.is_dir():
        raise OodmlError(f"There is no folder {path}: give the folder of a finished run.")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OodmlError(
            f"{path} holds no finished run: there is no {file.name} in it. To resume a stopped run, repeat the command "
            "that started it."
        ) from error
    except json.JSONDecodeError as error:
        raise OodmlError(f"{file} is damaged ({error}). Remove it and repeat the run: it resumes.") from error
    if data.get("format") != FORMAT:
        raise OodmlError(f"{file} has format {data.get('format')!r}; this version of oodml reads {FORMAT}.")
    return Result(final_scores(data), data["untrained"], Path(path), data)


def check_folder(out: Path, settings: RunConfig, run_hash: str) -> Result | None:
    """The finished run in a folder, if there is one. Raise if the folder holds another run or something else, or cannot
    hold a run, before anything is read or written."""
    check_holds_only("run", out, _MARKS)
    if (out / "result.json").exists():
        result = load_result(out)
        if result.data["config_hash"] != run_hash:
            raise other_settings(out, result.data.get("config"), settings)
        return result
    if (out / "checkpoint.pt").exists():
        try:
            saved = RunConfig.load(out / "config.yaml")
        except OodmlError:  # the checkpoint will say whether it is the same run
            saved = None
        if saved is not None and saved.hash() != run_hash:
            raise other_settings(out, saved.portable_dict(), settings)
    check_writable(out, "A run needs a folder of its own (out)")
    return None


def other_settings(out: Path, found: Mapping[str, Any] | None, wanted: RunConfig) -> OodmlError:
    """The error for a folder with a run of other settings: it names those that differ."""
    differing = f" ({_differences(found, wanted)})" if found else ""
    return OodmlError(
        f"{out} holds a run with other settings{differing}. Choose another `out` (--out), or remove the folder."
    )


def _differences(found: Mapping[str, Any], wanted: RunConfig, shown: int = 4) -> str:
    now = wanted.resolved().portable_dict()
    names = [name for name, value in now.items() if name not in NOT_HASHED and found.get(name) != value]
    parts = [f"{name}: {_short(found.get(name))} there, {_short(now[name])} here" for name in names[:shown]]
    return "; ".join([*parts, *([f"and {len(names) - shown} more"] if len(names) > shown else [])])


def _short(value: Any, most: int = 60) -> str:
    """A setting as text; a split by its name, since its classes would fill the screen."""
    if isinstance(value, dict) and "train" in value and "test" in value:
        return str(value.get("name", "another split"))
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def final_scores(data: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a result: of the selected model, or the maximum of each metric where it has maxima."""
    maxima = data.get("maxima", {})
    return {name: maxima[name]["value"] if name in maxima else v for name, v in data["selected"]["scores"].items()}


def gain(scores: Mapping[str, float], untrained: Mapping[str, float]) -> dict[str, float]:
    """Scores minus those of the untrained backbone, for the metrics of both."""
    return {name: value - untrained[name] for name, value in scores.items() if name in untrained}


def names_key(dataset: Dataset) -> str:
    """The names of a dataset's classes and images: the same in every copy, wherever it is and however encoded."""
    names = (PurePosixPath(dataset.path(i)).stem for i in range(len(dataset)))
    text = "\n".join(f"{dataset.classes[label]}/{name}" for label, name in zip(dataset.labels, names, strict=True))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def check_same_images(result: Result, dataset: Dataset) -> None:
    """Raise unless these are the images a run was trained on, or a copy of them."""
    known = result.data["dataset"]
    if dataset.fingerprint != known["fingerprint"] and names_key(dataset) != known.get("names"):
        raise OodmlError(
            f"These are not the images the run {result.path} was trained on: {len(dataset):,} images of "
            f"{len(dataset.classes)} classes ({', '.join(dataset.classes[:3])}, …), and the run's have other names. "
            "Give the folder it was trained on, or a copy of it."
        )


def versions() -> dict[str, str]:
    """Versions on which numbers may depend."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_commit() -> str | None:
    """The commit of the checkout this package runs from, with a '+' for changed files; outside of one $OODML_COMMIT."""
    here = str(Path(__file__).parent)
    try:
        _git("-C", here, "ls-files", "--error-unmatch", __file__)  # the repository tracks this file
        commit = _git("-C", here, "rev-parse", "HEAD")
        return commit + ("+" if _git("-C", here, "status", "--porcelain", "--untracked-files=no", here) else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("OODML_COMMIT")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
