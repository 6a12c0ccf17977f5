"""Measure, build and control distribution shift between train and test classes. Arrays in, numbers and class lists out."""

from oodml.shift.builder import build_splits
from oodml.shift.frechet import fid
from oodml.shift.kernel import KID, kid
from oodml.shift.split import Split, Splits, load_splits, save_splits

__all__ = ["KID", "Split", "Splits", "build_splits", "fid", "kid", "load_splits", "save_splits"]
