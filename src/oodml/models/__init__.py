"""Backbones, heads, the embedder, weights and feature extraction."""

from oodml.models.backbones import (
    Backbone,
    freeze_batchnorm,
    list_backbones,
    make_backbone,
    own_seed,
    register_backbone,
    weights_digest,
)
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.features import extract_features
from oodml.models.heads import Head

__all__ = [
    "Backbone",
    "Embedder",
    "Head",
    "Outputs",
    "Pooled",
    "extract_features",
    "freeze_batchnorm",
    "list_backbones",
    "make_backbone",
    "own_seed",
    "register_backbone",
    "weights_digest",
]
