"""`tiny`: a small convolutional network for glyphs on a CPU."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from oodml.models.backbones.base import Backbone, own_seed, register_backbone
from oodml.models.backbones.weights import find_weights, load_weights, read_weights

_WIDTHS = (16, 32, 64)


@register_backbone("tiny")
def tiny(pretrained: bool = True, weights: str | Path | None = None, seed: int = 0) -> Backbone:
    """Three convolution stages (16, 32, 64 channels) with max-pooling, trained from scratch: glyphs on a CPU.

    No trained weights are published for it: with `pretrained=True` and no file it starts from `seed`, and its
    batch-norm is meant to be trained, not frozen. A 32-pixel image becomes a (64, 4, 4) map.
    """
    with own_seed(seed):
        body = nn.Sequential(*(_stage(i, o) for i, o in zip((3, *_WIDTHS), _WIDTHS, strict=False)))
        for module in body.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    path = find_weights("tiny", weights) if pretrained or weights else None
    if path:
        load_weights(body, read_weights(path), source=path)
    return Backbone(
        body,
        name="tiny",
        feature_dim=_WIDTHS[-1],
        input_size=32,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        pretrained=path is not None,
    )


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),  # batch-norm brings the bias
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
