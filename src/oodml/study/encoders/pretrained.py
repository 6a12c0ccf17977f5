"""Published encoders on the splits of a study, beside the methods that were trained in it (ooDML, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oodml.encoders.published import backbone_name, encoder_features, encoder_specs
from oodml.encoders.score import check_forms, in_form
from oodml.models import Backbone
from oodml.study.encoders.score import score_splits, splits_and_pictures
from oodml.study.store import Store, open_store


def score_pretrained(
    folder: str | Path | Store,
    backbones: Sequence[str | Mapping[str, Any] | Backbone],
    *,
    form: str = "normalised",
    components: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Score encoders without training on every split of a study; they enter its table, its ranking and its report.

    Arguments are those of `oodml.evaluate_pretrained`. In the table an encoder has its own name, with the form behind
    it unless that is "normalised".
    """
    check_forms([form], components)
    encoders = encoder_specs(backbones)
    store = open_store(folder)
    splits, data = splits_and_pictures(store, quiet)
    found = []
    for encoder in encoders:
        label, features = encoder_features(data, device=device, quiet=quiet, **encoder)
        named = label if form == "normalised" else f"{label} ({form})"
        rows = {
            split.name: in_form(
                features[data.indices_of(split.test)], form, features[data.indices_of(split.train)], components
            )
            for split in splits
        }
        found.append(score_splits(store, named, "generic", data, splits, rows, backbone=backbone_name(encoder["name"])))
    return found
