"""The features that a study's splits were built from, for whoever wants to look at the splits again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.data import Dataset, load_images
from oodml.models import extract_features


def split_features(recipe: Mapping[str, Any], dataset: Dataset) -> tuple[np.ndarray, Dataset]:
    """Features (N, D) and the pictures they belong to, as the build of the splits had them.

    `recipe` stands in the provenance of every split that a study built. The features are on disk since then, unless
    the cache was emptied.
    """
    readable, images = load_images(dataset, quiet=True).dataset, recipe.get("images_per_class")
    if recipe.get("data", readable.fingerprint) != readable.fingerprint:
        raise OodmlError(f"the data set {dataset.name!r} has changed since they were built.")
    sample = readable.sample(images) if images else readable
    return extract_features(sample, backbone=recipe["backbone"], weights=recipe.get("weights")), sample
