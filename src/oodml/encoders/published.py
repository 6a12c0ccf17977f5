"""Published encoders on splits, without training (ooDML, section 4.3, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oodml._errors import OodmlError, unknown_name
from oodml._split import Split, as_split, load_splits
from oodml.config import check_backbone
from oodml.data import Dataset, load_dataset, load_images
from oodml.encoders.score import EncoderScore, check_forms, score_encoder
from oodml.evaluation import MATCHED, MATCHED_ERROR, check_metrics
from oodml.models import Backbone, extract_features, make_backbone
from oodml.models.features import check_weights

# What the paper compares, by the names of registered backbones and of timm's hub. SwAV needs its published file.
PUBLISHED = {
    "clip": "clip_vit_b32",
    "bit-21k": "resnetv2_50x1_bit.goog_in21k",
    "bit-1k": "resnetv2_50x1_bit.goog_in21k_ft_in1k",  # the 21k model fine-tuned on 1k, not trained on 1k alone
    "efficientnet-b0": "efficientnet_b0.ra_in1k",
    "resnet50-1k": "resnet50.tv_in1k",
    "dinov2": "vit_small_patch14_dinov2.lvd142m",
    "swav": "swav_resnet50",
}
_FORMERLY = {"clip": "vit_base_patch32_clip_224.openai"}  # short names with another meaning in scores of version 1


def backbone_name(name: str | Backbone) -> str:
    """The full name of an encoder, also of a short one in `PUBLISHED`."""
    return name.name if isinstance(name, Backbone) else PUBLISHED.get(name, name)


def scored_by(name: str, held: Mapping[str, Any]) -> bool:
    """Whether scores in a study's folder belong to the encoder that `name` means today."""
    current = backbone_name(name)
    return held.get("backbone", _FORMERLY.get(name, current)) == current


def evaluate_pretrained(
    dataset: str | Mapping[str, Any] | Dataset,
    splits: Any = "default",
    backbones: Sequence[str | Mapping[str, Any] | Backbone] = ("tf_efficientnet_lite0",),
    *,
    forms: Sequence[str] = ("normalised", "raw"),
    components: int | None = None,
    metrics: Sequence[str] | None = None,
    match: tuple[int, int] | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> list[EncoderScore]:
    """Score published encoders on the test classes of every split, without any training.

    Args:
        dataset: a dataset, its name, or a mapping with name and root.
        splits: a split, several, a file of them, or "default".
        backbones: names for `make_backbone` (registered ones and any timm model, hub tag included), short names of
            `PUBLISHED`, mappings {"name", "weights", "label"}, or `Backbone`s.
        forms, components, metrics, match: as of `score_encoder`.

    Returns:
        One row per encoder, split and form. Features come from the cache that training uses too.
    """
    check_forms(forms, components)
    check_metrics(name for name in metrics or () if name not in (MATCHED, MATCHED_ERROR))
    encoders = encoder_specs(backbones)
    data = load_images(load_dataset(dataset), quiet=quiet).dataset  # without images that cannot be read
    chosen = read_splits(data, splits)
    rows = []
    for encoder in encoders:
        label, features = encoder_features(data, device=device, quiet=quiet, **encoder)
        rows += score_encoder(
            features.__getitem__, data, chosen, metrics, match, label=label, forms=forms, components=components
        )
    return rows


def encoder_features(
    data: Dataset,
    name: str | Backbone,
    weights: str | Path | None = None,
    label: str | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> tuple[str, np.ndarray]:
    """The label of an encoder and the features (N, D) of every image, cached."""
    model = name if isinstance(name, Backbone) else make_backbone(name, weights=weights)
    features = extract_features(data, model, size=input_side(model, data.image_size), device=device, quiet=quiet)
    return label or model.name, features


@torch.no_grad()
def input_side(model: Backbone, wanted: int) -> int | None:
    """None (the dataset's own size), or the only size that the network accepts, as some transformers do."""
    if wanted == model.input_size:
        return None
    was_training = model.training
    try:
        model.eval()(torch.zeros(1, 3, max(wanted, 64), max(wanted, 64), device=model.mean.device))
    except (AssertionError, RuntimeError):
        return model.input_size
    finally:
        model.train(was_training)
    return None


def read_splits(data: Dataset, splits: Any) -> list[Split]:
    """Splits from whatever names them, checked against the dataset."""
    if isinstance(splits, str | Path) and splits != "default":
        found = list(load_splits(splits))
    elif isinstance(splits, Sequence) and not isinstance(splits, str):
        found = [split for each in splits for split in read_splits(data, each)]
    else:
        found = [data.default_split if splits == "default" else as_split(splits)]
    for split in found:
        if split.dataset and split.dataset != data.name:
            raise OodmlError(f"Split {split.name!r} is of {split.dataset!r}, and the dataset at hand is {data.name!r}.")
    return found


def encoder_specs(backbones: Sequence[str | Mapping[str, Any] | Backbone]) -> list[dict[str, Any]]:
    """Every encoder as arguments of `encoder_features`, its name checked before anything is computed."""
    specs = []
    for spec in backbones:
        given: dict[str, Any] = {"name": spec} if isinstance(spec, str | Backbone) else dict(spec)
        if extra := given.keys() - {"name", "weights", "label"}:
            raise unknown_name("key of an encoder", sorted(extra)[0], ("name", "weights", "label"))
        if "name" not in given:
            raise OodmlError(f"An encoder is a name, a Backbone or a mapping with 'name', got {spec!r}.")
        check_weights(given["name"], given.get("weights"))
        if isinstance(given["name"], str):
            if given["name"] in PUBLISHED:
                given = {"label": given["name"], **given, "name": backbone_name(given["name"])}
            check_backbone(given["name"])
        specs.append(given)
    return specs
