"""Encoders that an audit measures as they are: the backbone without a head, other weights where they are present."""

from __future__ import annotations

import numpy as np

from oodml.models import extract_features
from oodml.models.backbones.efficientnet_lite import packaged_weights
from oodml.shift import Split
from oodml.study.audit.pictures import Pictures
from oodml.study.audit.sizing import Clock
from oodml.study.encoders import score_splits
from oodml.study.store import Store
from oodml.study.table import EXTERNAL, UNTRAINED, untrained_label


def score_baselines(
    pictures: Pictures, splits: list[Split], store: Store, clock: Clock, quiet: bool = False
) -> list[str]:
    """Score them on every split; returns notes on what was left out."""
    _score(untrained_label(pictures.backbone), UNTRAINED, pictures.features, pictures, splits, store)
    left_out = []
    for variant in (1, 2):  # EfficientNet-Lite1 and 2 take about two and three times as long as Lite0
        name = f"tf_efficientnet_lite{variant}"
        if name == pictures.backbone or packaged_weights(variant) is None:
            continue
        if (1 + variant) * pictures.seconds_a_view > 0.15 * clock.left:
            left_out.append(f"No time was left for the generic encoder {name}.")
            continue
        _score(name, EXTERNAL, extract_features(pictures.dataset, name, quiet=quiet), pictures, splits, store)
    return left_out


def _score(label: str, kind: str, features: np.ndarray, pictures: Pictures, splits: list[Split], store: Store) -> None:
    rows = {split.name: features[pictures.dataset.indices_of(split.test)] for split in splits}
    score_splits(store, label, kind, pictures.dataset, splits, rows, normalise=True)
