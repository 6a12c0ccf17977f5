"""Settings from and to a YAML file, and what is wrong with them in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from oodml._errors import OodmlError, unknown_name
from oodml._files import atomic_file


def read_settings(path: str | Path, what: str) -> dict[str, Any]:
    """The 'key: value' lines of a YAML file; `what` names it in an error."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OodmlError(f"Could not read the {what} {path}: {error.strerror or error}.") from error
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise OodmlError(f"Could not read the {what} {path}: it is no YAML{where} ({error.problem}).") from error
    except (yaml.YAMLError, ValueError) as error:  # bytes that are no UTF-8, a date of month 99
        raise OodmlError(
            f"Could not read the {what} {path}: it is no YAML ({' '.join(str(error).split())})."
        ) from error
    if not isinstance(values, dict):
        raise OodmlError(f"{path} must hold settings as 'key: value' lines, e.g. 'dataset: glyphs'.")
    return values


def write_settings(path: str | Path, values: dict[str, Any]) -> None:
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


def explain_settings(error: ValidationError, model: type[BaseModel]) -> OodmlError:
    """Pydantic's report as one sentence a setting, with the nearest valid name for an unknown one."""
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
