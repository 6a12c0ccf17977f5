"""The folder of a run: what may be in it before the run begins or goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml._files import check_holds_only, check_writable
from oodml.config import RunConfig
from oodml.training.result import load_result

# What a run writes first, each of its ways: by one of these a folder is known as a run's.
_MARKS = ("config.yaml", "result.json", "checkpoint.pt", "search", "tensorboard", "wandb.id", "mlflow.id")


def check_folder(out: Path, settings: RunConfig) -> None:
    """Refuse a folder that holds something else or cannot hold a run, before anything is read or written."""
    check_holds_only("run", out, _MARKS)
    run_hash = settings.hash()
    if (out / "result.json").exists():
        result = load_result(out).data
        if result["config_hash"] != run_hash:
            raise other_settings(out, result.get("config"), settings)
        return
    if (out / "checkpoint.pt").exists() and (found := _saved_settings(out)) and found.hash() != run_hash:
        raise other_settings(out, found.on_its_own(), settings)
    check_writable(out, "A run needs a folder of its own (out)")


def other_settings(out: Path, found: dict[str, Any] | None, wanted: RunConfig) -> OodmlError:
    """The error for a folder with a run of other settings: it names those that differ."""
    differing = _differences(found, wanted) if found else ""
    told = f" ({differing})" if differing else ""
    return OodmlError(
        f"{out} holds a run with other settings{told}. Choose another `out` (--out), or remove the folder."
    )


def _differences(found: dict[str, Any], wanted: RunConfig, shown: int = 4) -> str:
    from oodml.config.identity import NOT_HASHED

    now = wanted.resolved().on_its_own()
    names = [name for name, value in now.items() if name not in NOT_HASHED and found.get(name) != value]
    parts = [f"{name}: {_short(found.get(name))} there, {_short(now[name])} here" for name in names[:shown]]
    return "; ".join([*parts, *([f"and {len(names) - shown} more"] if len(names) > shown else [])])


def _short(value: Any, most: int = 60) -> str:
    """A setting as text; a split by its name, since its classes would fill the screen."""
    if isinstance(value, dict) and "train" in value and "test" in value:
        return str(value.get("name", "another split"))
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _saved_settings(out: Path) -> RunConfig | None:
    """The settings saved in a run's folder; None where they cannot be read: the checkpoint will say."""
    try:
        return RunConfig.load(out / "config.yaml")
    except OodmlError:
        return None
