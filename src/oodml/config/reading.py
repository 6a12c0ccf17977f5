"""How settings are written: YAML files, a dataset and a split in them, and errors that name the wrong setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from oodml._errors import OodmlError, unknown_name
from oodml._files import atomic_file
from oodml._split import Split, as_split


def read_settings(path: str | Path, what: str) -> dict[str, Any]:
    """The 'key: value' lines of a YAML file; `what` names it in an error."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OodmlError(f"Could not read the {what} {path}: {error.strerror or error}.") from error
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise OodmlError(f"Could not read the {what} {path}: it is not YAML{where} ({error.problem}).") from error
    except (yaml.YAMLError, ValueError) as error:  # bytes that are not UTF-8, a date of month 99
        raise OodmlError(
            f"Could not read the {what} {path}: it is not YAML ({' '.join(str(error).split())})."
        ) from error
    if not isinstance(values, dict):
        raise OodmlError(f"{path} must hold settings as 'key: value' lines, e.g. 'dataset: glyphs'.")
    return values


def write_settings(path: str | Path, values: dict[str, Any]) -> None:
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


def explain_settings(error: ValidationError, model: type[BaseModel]) -> OodmlError:
    """Pydantic's report as one sentence per setting, with the nearest valid name for an unknown one."""
    sentences = []
    for each in error.errors():
        cause = each.get("ctx", {}).get("error")
        place = ".".join(str(part) for part in each["loc"])
        if isinstance(cause, OodmlError):
            sentences.append(str(cause))
        elif each["type"] == "extra_forbidden":
            sentences.append(str(unknown_name("setting", place, model.model_fields)))
        else:
            sentences.append(f"{place}: {each['msg'][0].lower()}{each['msg'][1:]}, got {each['input']!r}.")
    return OodmlError(" ".join(dict.fromkeys(sentences)))


def dataset_identity(spec: str | dict[str, Any]) -> dict[str, Any]:
    """What identifies a dataset: its settings without the root of a registered one, which may be stored anywhere.

    A folder of images is identified by its absolute path.
    """
    settings = {"name": spec} if isinstance(spec, str) else with_absolute_root(spec)
    return {key: value for key, value in settings.items() if key != "root" or settings["name"] == "folder"}


def with_absolute_root(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dataset, valid from any working directory."""
    root = spec.get("root")
    return {**spec, "root": absolute_path(root)} if root else dict(spec)


def absolute_path(path: str | Path) -> str:
    return str(Path(path).expanduser().resolve())


def split_mapping(split: Split, episodes: bool = False) -> dict[str, Any]:
    """A split as plain settings that `as_split` reads: its classes, and its `episodes` if asked for."""
    dropped = ("provenance",) if episodes and split.episodes else ("provenance", "episodes")
    return {key: value for key, value in split.to_json().items() if key not in dropped}


def split_key(split: Any) -> Any:
    """What identifies a split: its classes, not the file they were read from."""
    if split == "default":
        return split
    found = as_split(split)
    sides = {side: sorted(getattr(found, side)) for side in ("train", "val", "test")}
    return {**sides, "test_dataset": found.test_dataset}
