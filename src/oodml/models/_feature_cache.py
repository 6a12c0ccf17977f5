"""Features on disk: one file a view, named by everything the numbers depend on, checked when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from oodml._files import atomic_file, cache_root

_FORMAT = 1  # raise it when the way features are computed changes their values


def feature_file(facts: Mapping[str, Any]) -> Path:
    """Where features that depend on `facts` (and on nothing else) are kept."""
    text = json.dumps({"format": _FORMAT, **facts}, sort_keys=True)
    return cache_root() / "features" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"


def write_features(path: Path, features: np.ndarray, facts: Mapping[str, Any]) -> None:
    """Write features with their checksum and a readable account of what they are."""
    metadata = {"sha256": _checksum(features), "facts": json.dumps(facts, sort_keys=True)}
    with atomic_file(path) as temporary:
        save_file({"features": features}, temporary, metadata=metadata)


def read_features(path: Path, images: int) -> np.ndarray | None:
    """The features in `path` (N, D); None if there are none or if the file is damaged, so that they are made anew."""
    try:
        with safe_open(path, framework="np") as file:
            features, metadata = file.get_tensor("features"), file.metadata() or {}
    except (OSError, SafetensorError, ValueError):
        return None
    intact = features.shape[:1] == (images,) and metadata.get("sha256") == _checksum(features)
    return features if intact else None


def _checksum(features: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(features).data).hexdigest()
