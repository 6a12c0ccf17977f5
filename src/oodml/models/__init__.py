"""Backbones, heads, offline weights and feature extraction."""

from oodml.models.backbones import Backbone, freeze_batchnorm, list_backbones, make_backbone, register_backbone

__all__ = ["Backbone", "freeze_batchnorm", "list_backbones", "make_backbone", "register_backbone"]
