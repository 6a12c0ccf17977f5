"""Forecast a finished study's recall on pictures of another place; labels are not needed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml.data import Dataset
from oodml.models import extract_features
from oodml.shift import Placement
from oodml.study.audit.pictures import Pictures, read_target
from oodml.study.audit.target import place
from oodml.study.encoders import splits_and_images
from oodml.study.forecast import forecast_file
from oodml.study.leaderboard import METRIC, ranking
from oodml.study.load import load_study
from oodml.study.splits import smallest_test_set
from oodml.study.store import Store, open_store


def forecast_target(
    folder: str | Path | Store,
    target: Dataset,
    name: str = "target",
    backbone: str = "tf_efficientnet_lite0",
    method: str | None = None,
    quiet: bool = False,
) -> tuple[Placement, dict[str, Any]]:
    """Place the target on the scale of a study's splits and read the recall to expect there off a method's curve.

    All distances are over images at one common size, between features of `backbone`. `method` defaults to the best of
    the study. Writes forecast.json into the study's folder; returns the placement and what was written. What makes the
    forecast a rough one, few pictures or such that cannot be read, is warned about.
    """
    store = open_store(folder)
    table = load_study(store)
    chosen = method or next(iter(ranking(table, METRIC)), None)
    if chosen is None:
        raise OodmlError("No method of the study has finished on every split yet: there is no curve to read.")
    if chosen not in table.methods:
        raise unknown_name("method of the study:", chosen, table.methods)
    splits, dataset = splits_and_images(store, quiet)
    features = extract_features(dataset, backbone, quiet=quiet)
    pictures = Pictures({}, dataset, backbone, features, np.arange(len(dataset)), 0, 0.0)
    notes: list[str] = []
    placed = place(pictures, splits, read_target(target, backbone, notes, quiet))
    for each in notes:
        warnings.warn(each, stacklevel=2)
    gallery = smallest_test_set(splits, dataset)
    assert placed.target is not None  # a target was given
    held = forecast_file(table, chosen, METRIC, gallery, placed.fids, (name, placed.target.mean))
    store.write_json("forecast.json", held)
    return placed, held
