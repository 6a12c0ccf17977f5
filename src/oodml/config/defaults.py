"""Numbers of a run that belong to its backbone and its depth of training, not to its method or a paper."""

from __future__ import annotations

from typing import Any

# Optimiser and batch defaults (DESIGN.md, "Training"), measured on glyphs (tiny) and on CUB and CARS (the others).
_TINY = {
    "lr": 2e-3,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "samples_per_class": 4,
    "embedding_dim": 64,
    "steps": 200,
}
_HEAD = {"lr": 1e-4, "weight_decay": 0.0, "schedule": "cosine", "samples_per_class": 2, "embedding_dim": 128}
_HEAD |= {"steps": 1500, "views": 8, "crop_scale": (0.35, 1.0)}
_ALL = {"weight_decay": 4e-4, "schedule": "constant", "samples_per_class": 2, "embedding_dim": 128, "epochs": 40}
_LITE_LR, _OTHER_LR = 1e-4, 1e-5  # EfficientNet-Lite; ResNet and whatever else is pretrained
_COMMON = {"batch_size": 112, "sampler": "spc", "warmup": 0.0, "selection": "val", "views": 8}


def default_backbone(train: str) -> str:
    """`tiny` is trained from scratch; a frozen backbone must be pretrained."""
    return "tf_efficientnet_lite0" if train == "head" else "tiny"


def default_values(backbone: str, train: str) -> dict[str, Any]:
    """The settings that belong to a backbone and a depth of training."""
    if train == "head":
        return {**_COMMON, **_HEAD}
    if backbone == "tiny":
        return {**_COMMON, **_TINY}
    return {**_COMMON, **_ALL, "lr": _LITE_LR if backbone.startswith("tf_efficientnet_lite") else _OTHER_LR}
