"""Studies: many runs over splits of rising shift, and their statistics."""

from typing import TYPE_CHECKING, Any

from oodml.study.forecast import Forecast, forecast
from oodml.study.statistics import ags
from oodml.study.table import Row, StudyTable

if TYPE_CHECKING:
    from oodml.study.encoders import add_encoder
    from oodml.study.load import load_study
    from oodml.study.run import run_study
    from oodml.study.settings import StudyConfig

# These import training, which a score alone does not need.
_LAZY = {"StudyConfig": "settings", "load_study": "load", "run_study": "run", "add_encoder": "encoders"}

__all__ = [
    "Forecast",
    "Row",
    "StudyConfig",
    "StudyTable",
    "add_encoder",
    "ags",
    "forecast",
    "load_study",
    "run_study",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"oodml.study.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'oodml.study' has no attribute {name!r}")
