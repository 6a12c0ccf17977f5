"""Measuring embeddings: neighbours, retrieval, clustering, structure, thresholds. Arrays in, numbers out."""

from __future__ import annotations

from oodml.evaluation._request import MATCHED
from oodml.evaluation.evaluate import evaluate
from oodml.evaluation.neighbours import Neighbours, find_neighbours
from oodml.evaluation.scores import Scores
from oodml.evaluation.structure import structure
from oodml.evaluation.thresholds import fnmr_at_fmr, threshold_drift

__all__ = [
    "MATCHED",
    "Neighbours",
    "Scores",
    "evaluate",
    "find_neighbours",
    "fnmr_at_fmr",
    "structure",
    "threshold_drift",
]
