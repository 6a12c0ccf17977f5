"""The registry of backbones, apart from what uses it so that the backbone files can import it."""

from __future__ import annotations

from oodml._registry import Registry

REGISTRY = Registry("backbone", "oodml.models.backbones", "oodml.backbones", context=("pretrained", "weights", "seed"))
register_backbone = REGISTRY.register
