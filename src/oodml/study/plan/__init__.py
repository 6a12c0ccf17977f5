"""What a study is to run: its settings, its splits, the grid of runs that follows from them, and the plan on disk."""

from oodml.study.plan.features import split_features
from oodml.study.plan.grid import PlannedRun, plan
from oodml.study.plan.saved import PLAN, SETTINGS, Place, load_plan, load_settings, save_plan, saved_match
from oodml.study.plan.settings import BuildSplits, OfficialSplits, StudyConfig
from oodml.study.plan.splits import (
    SPLITS,
    choose_splits,
    keep_progression,
    keep_splits_of,
    official_splits,
    split_hash,
    stored_splits,
)

__all__ = [
    "PLAN",
    "SETTINGS",
    "SPLITS",
    "BuildSplits",
    "OfficialSplits",
    "Place",
    "PlannedRun",
    "StudyConfig",
    "choose_splits",
    "keep_progression",
    "keep_splits_of",
    "load_plan",
    "load_settings",
    "official_splits",
    "plan",
    "save_plan",
    "saved_match",
    "split_features",
    "split_hash",
    "stored_splits",
]
