"""Studies: many runs over splits of rising shift, summed up."""

from typing import TYPE_CHECKING, Any

from oodml.study.forecast import Forecast, forecast
from oodml.study.statistics import Row, StudyTable, ags

if TYPE_CHECKING:
    from oodml.study.plan import StudyConfig
    from oodml.study.results import load_study
    from oodml.study.running import run_study

# They load training, which a score alone does not need.
_LAZY = {"StudyConfig": "plan", "load_study": "results", "run_study": "running"}

__all__ = ["Forecast", "Row", "StudyConfig", "StudyTable", "ags", "forecast", "load_study", "run_study"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"oodml.study.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'oodml.study' has no attribute {name!r}")
