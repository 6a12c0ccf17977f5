"""Backbones, heads, offline weights and feature extraction."""
