"""Running a study: do what is missing of its plan, say how far it is, and estimate how long the rest will take."""

from oodml.study.running.run import default_folder, missing_generic, prepare, preview, run_missing, run_study
from oodml.study.running.status import RunStatus, counts, estimate_seconds, status
from oodml.study.running.trial import try_run

__all__ = [
    "RunStatus",
    "counts",
    "default_folder",
    "estimate_seconds",
    "missing_generic",
    "prepare",
    "preview",
    "run_missing",
    "run_study",
    "status",
    "try_run",
]
