"""CLIP's image encoder as its authors published it."""

from __future__ import annotations

from pathlib import Path

from oodml.models.backbones.base import Backbone, register_backbone
from oodml.models.backbones.timm_models import build, load_from_hub, wrap
from oodml.models.backbones.weights import find_weights, load_weights, read_weights

_MODEL = "vit_base_patch32_clip_quickgelu_224.openai"
_DIM = 512  # of the space that CLIP shares between images and texts


@register_backbone("clip_vit_b32", paper="Radford et al., Learning Transferable Visual Models, ICML 2021")
def clip_vit_b32(pretrained: bool = True, weights: str | Path | None = None, seed: int = 0) -> Backbone:
    """CLIP ViT-B/32 with QuickGELU and its 512-d projection, as `encode_image` of the official repository.

    timm keeps the projection as the classifier of `vit_base_patch32_clip_quickgelu_224.openai`, which a backbone made
    by that name leaves out (768-d, before the projection).
    """
    body = build(_MODEL, seed, outputs=_DIM)
    path = find_weights("clip_vit_b32", weights) if pretrained or weights else None
    if path:
        load_weights(body.model, read_weights(path), source=path)
    elif pretrained:
        load_from_hub("clip_vit_b32", body, seed, outputs=_DIM)
    return wrap("clip_vit_b32", body, pretrained=pretrained or path is not None)
