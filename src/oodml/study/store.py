"""Where the runs of a study live: one folder a run, named by the hash of its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml._files import write_json


class Store:
    """A folder of run folders. A run is done when its result.json stands there, which is written last and whole."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def result(self, run_id: str) -> dict[str, Any] | None:
        """What a finished run found; None when it has not finished."""
        path = self.folder(run_id) / "result.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, json.JSONDecodeError) as error:
            raise OodmlError(
                f"The result {path} cannot be read ({error}). Delete that folder and run again."
            ) from error

    def failure(self, run_id: str) -> str | None:
        """Why a run failed last time, as a traceback; None when it did not."""
        path = self.folder(run_id) / "failed.json"
        return json.loads(path.read_text(encoding="utf-8"))["traceback"] if path.exists() else None

    def record_failure(self, run_id: str, traceback: str) -> None:
        write_json(self.folder(run_id) / "failed.json", {"traceback": traceback})

    def clear_failure(self, run_id: str) -> None:
        (self.folder(run_id) / "failed.json").unlink(missing_ok=True)
