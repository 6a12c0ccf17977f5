"""Measure, build and control the shift between train and test classes: arrays in, numbers and class lists out."""

from oodml.shift.agreement import Agreement, agreement
from oodml.shift.builder import build_splits
from oodml.shift.episodes import episode_indices, make_episodes, resolve_episodes
from oodml.shift.frechet import fid
from oodml.shift.kernel import KID, kid
from oodml.shift.measure import Ruler, across_datasets, iid_baseline
from oodml.shift.official import load_official, load_official_episodes, names_by_content, official_at_hand
from oodml.shift.split import Split, Splits, load_splits, save_splits, split_address, with_validation
from oodml.shift.target import place_target, similar_pairs, splits_of_pictures, thumbnail_likeness

__all__ = [
    "KID",
    "Agreement",
    "Ruler",
    "Split",
    "Splits",
    "across_datasets",
    "agreement",
    "build_splits",
    "episode_indices",
    "fid",
    "iid_baseline",
    "kid",
    "load_official",
    "load_official_episodes",
    "load_splits",
    "make_episodes",
    "names_by_content",
    "official_at_hand",
    "place_target",
    "resolve_episodes",
    "save_splits",
    "similar_pairs",
    "split_address",
    "splits_of_pictures",
    "thumbnail_likeness",
    "with_validation",
]
