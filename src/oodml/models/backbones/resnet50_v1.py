"""`resnet50_v1`: ResNet-50 in its original form, for weights converted from the authors' release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from oodml._errors import OodmlError
from oodml.models.backbones.base import Backbone, register_backbone
from oodml.models.backbones.timm_models import build, classifier_names, wrap
from oodml.models.backbones.weights import find_weights, load_weights, read_weights

_BGR_MEAN = (103.939, 116.779, 123.68)  # ImageNet's, in 0..255


@register_backbone("resnet50_v1", paper="He et al., Deep Residual Learning, CVPR 2016")
def resnet50_v1(pretrained: bool = True, weights: str | Path | None = None, seed: int = 0) -> Backbone:
    """ResNet-50 as first published: stride in the first 1×1, BGR input in 0..255; weights from a local file.

    It differs from timm's and torchvision's `resnet50` (the "v1.5" form) in three points: a down-sampling block strides
    in its first 1×1 convolution instead of the 3×3, batch-norm's epsilon is 1e-3, and the input is BGR in 0..255 minus
    the ImageNet mean. Keys of the weights file are those of timm and torchvision.
    """
    path = find_weights("resnet50_v1", weights) if pretrained or weights else None
    if path is None and pretrained:
        raise OodmlError(
            "The weights of 'resnet50_v1' come from a local file: make it with tools/resnet50_v1.py of oodml's "
            "repository (docs/models.md), then put resnet50_v1.safetensors or resnet50_v1.pth into the folder "
            "$OODML_WEIGHTS, or pass weights=FILE. Pass pretrained=False to start from random weights."
        )
    body = build("resnet50", seed)
    to_original_form(body.model)
    if path:
        load_weights(body.model, read_weights(path), source=path, drop=classifier_names(body.model))
    rgb_mean = tuple(value / 255 for value in reversed(_BGR_MEAN))
    return wrap(
        "resnet50_v1", body, pretrained=path is not None, mean=rgb_mean, std=(1 / 255,) * 3, channel_order="bgr"
    )


def to_original_form(model: Any) -> None:
    """Move the strides of a v1.5 ResNet-50 to the first 1×1 convolutions and set batch-norm's epsilon to 1e-3."""
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
