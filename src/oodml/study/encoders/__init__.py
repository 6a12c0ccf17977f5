"""Encoders scored on the splits of a study without being trained in it: published weights, or one's own."""

from oodml.study.encoders.pretrained import score_pretrained
from oodml.study.encoders.score import score_splits, score_study, splits_and_pictures

__all__ = ["score_pretrained", "score_splits", "score_study", "splits_and_pictures"]
