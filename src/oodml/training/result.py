"""The result of a run: every number that is available in it, each under its honest name."""

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
from oodml.data import Dataset

FORMAT = 1
PACKAGES = ("oodml", "torch", "timm", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Result:
    """What a run found.

    scores        every metric on the test classes: of the model that `selection` chose, or with selection="test" the
                  maximum of each metric over all evaluations, as the papers report it. A result that keeps no maxima
                  is older than that rule and has all metrics at the best recall@1. `data["selected"]["scores"]` are
                  always those of the chosen model.
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
        """What training bought: scores minus untrained."""
        return gain(self.scores, self.untrained)

    @property
    def last(self) -> dict[str, float]:
        """Scores of the last evaluation."""
        return self.data["last"]["scores"]

    @property
    def best_on_test(self) -> dict[str, float]:
        """Scores of the one epoch that is best on the test classes: not an honest choice."""
        return self.data["best_on_test"]["scores"]

    @property
    def structure(self) -> dict[str, dict[str, float]]:
        """Structure metrics on train and test classes."""
        return self.data["structure"]

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row an evaluation, as in metrics.jsonl."""
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
            f"{path} holds no finished run: there is no {file.name} in it. One that was stopped goes on with the "
            "command that started it."
        ) from error
    except json.JSONDecodeError as error:
        raise OodmlError(f"{file} is damaged ({error}). Remove it and start the run again: it goes on.") from error
    if data.get("format") != FORMAT:
        raise OodmlError(f"{file} has format {data.get('format')!r}; this version of oodml reads {FORMAT}.")
    return Result(final_scores(data), data["untrained"], Path(path), data)


def final_scores(data: Mapping[str, Any]) -> dict[str, float]:
    """The scores that a result stands for: of the selected model, or the maximum of each metric where it keeps them."""
    maxima = data.get("maxima", {})
    return {name: maxima[name]["value"] if name in maxima else v for name, v in data["selected"]["scores"].items()}


def gain(scores: Mapping[str, float], untrained: Mapping[str, float]) -> dict[str, float]:
    """Scores minus those of the untrained backbone, for the metrics of both."""
    return {name: value - untrained[name] for name, value in scores.items() if name in untrained}


def names_key(dataset: Dataset) -> str:
    """The names of a data set's classes and pictures: the same in every copy, wherever it is and however encoded."""
    names = (PurePosixPath(dataset.path(i)).stem for i in range(len(dataset)))
    text = "\n".join(f"{dataset.classes[label]}/{name}" for label, name in zip(dataset.labels, names, strict=True))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def check_own_pictures(result: Result, dataset: Dataset) -> None:
    """Refuse pictures that are not those a run was trained on; another copy of them will do."""
    known = result.data["dataset"]
    if dataset.fingerprint != known["fingerprint"] and names_key(dataset) != known.get("names"):
        raise OodmlError(
            f"These are not the pictures the run {result.path} was trained on: {len(dataset):,} pictures of "
            f"{len(dataset.classes)} classes ({', '.join(dataset.classes[:3])}, …), and the run's have other names. "
            "Give the folder it was trained on, or a copy of it."
        )


def versions() -> dict[str, str]:
    """The versions that may change a number."""
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
        _git("-C", here, "ls-files", "--error-unmatch", __file__)  # not a repository that only lies around this package
        commit = _git("-C", here, "rev-parse", "HEAD")
        return commit + ("+" if _git("-C", here, "status", "--porcelain", "--untracked-files=no", here) else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("OODML_COMMIT")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
