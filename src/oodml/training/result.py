"""The result of a run: every number that is available in it, each under its honest name."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError

FORMAT = 1
PACKAGES = ("oodml", "torch", "timm", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Result:
    """What a run found.

    scores        every metric on the test classes, of the model that `selection` chose
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
        return self.data["gain"]

    @property
    def last(self) -> dict[str, float]:
        """Scores of the last evaluation."""
        return self.data["last"]["scores"]

    @property
    def best_on_test(self) -> dict[str, float]:
        """Scores of the epoch that is best on the test classes: the papers' habit, not an honest choice."""
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
    return Result(data["selected"]["scores"], data["untrained"], Path(path), data)


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
    """The commit of the checkout this package runs from, with a '+' for changed files; None outside of one."""
    here = str(Path(__file__).parent)
    try:
        _git("-C", here, "ls-files", "--error-unmatch", __file__)  # not a repository that only lies around this package
        commit = _git("-C", here, "rev-parse", "HEAD")
        return commit + ("+" if _git("-C", here, "status", "--porcelain", "--untracked-files=no", here) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
