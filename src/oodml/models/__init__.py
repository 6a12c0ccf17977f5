"""Backbones, heads, offline weights and feature extraction."""

from oodml.models.backbones import Backbone, freeze_batchnorm, list_backbones, make_backbone, register_backbone
from oodml.models.features import extract_features

__all__ = [
    "Backbone",
    "extract_features",
    "freeze_batchnorm",
    "list_backbones",
    "make_backbone",
    "register_backbone",
]
