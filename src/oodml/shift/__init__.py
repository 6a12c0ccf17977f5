"""Measure, build and control the shift between train and test classes: arrays in, numbers and class lists out."""

from oodml._split import Split, Splits, as_split, as_splits, check_names, load_splits, save_splits, split_address
from oodml.shift.builder import build_splits, with_validation
from oodml.shift.episodes import episode_indices, make_episodes, resolve_episodes
from oodml.shift.frechet import fid
from oodml.shift.kernel import KID, kid
from oodml.shift.measure import Agreement, SplitDistances, across_datasets, agreement, iid_baseline
from oodml.shift.official import load_official, load_official_episodes, names_by_content, official_at_hand
from oodml.shift.target import (
    Placement,
    SharedImage,
    Spread,
    place_target,
    reference_splits,
    shared_images,
    similar_pairs,
    thumbnail_likeness,
)

__all__ = [
    "KID",
    "Agreement",
    "Placement",
    "SharedImage",
    "Split",
    "SplitDistances",
    "Splits",
    "Spread",
    "across_datasets",
    "agreement",
    "as_split",
    "as_splits",
    "build_splits",
    "check_names",
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
    "reference_splits",
    "resolve_episodes",
    "save_splits",
    "shared_images",
    "similar_pairs",
    "split_address",
    "thumbnail_likeness",
    "with_validation",
]
