"""Measuring embeddings: neighbours, retrieval, clustering, structure, thresholds. Arrays in, numbers out."""

from __future__ import annotations

from oodml.evaluation.evaluate import evaluate
from oodml.evaluation.metrics import MATCHED, MATCHED_ERROR, check_metrics, metric_records, register_metric
from oodml.evaluation.neighbours import Neighbours, find_neighbours
from oodml.evaluation.scores import Scores
from oodml.evaluation.structure import structure
from oodml.evaluation.thresholds import fnmr_at_fmr, threshold_drift

__all__ = [
    "MATCHED",
    "MATCHED_ERROR",
    "Neighbours",
    "Scores",
    "check_metrics",
    "evaluate",
    "find_neighbours",
    "fnmr_at_fmr",
    "metric_records",
    "register_metric",
    "structure",
    "threshold_drift",
]
