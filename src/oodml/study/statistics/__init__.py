"""What a study found, in numbers: the table of scores, the Aggregated Generalisation Score, intervals, comparisons."""

from oodml.evaluation.estimate import Estimate, estimate
from oodml.study.statistics.ags import ags, ags_weights
from oodml.study.statistics.comparison import Comparison, compare
from oodml.study.statistics.table import TRAINED, Row, StudyTable, mean_over_seeds

__all__ = [
    "TRAINED",
    "Comparison",
    "Estimate",
    "Row",
    "StudyTable",
    "ags",
    "ags_weights",
    "compare",
    "estimate",
    "mean_over_seeds",
]
