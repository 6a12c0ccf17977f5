"""Objectives: one a file, formula and paper in the docstring; this room imports miners only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oodml._registry import Registry
from oodml.losses._base import Loss
from oodml.miners import Miner, make_miner

_REGISTRY = Registry(
    "loss", "oodml.losses", "oodml.losses", context=("num_classes", "embedding_dim", "miner", "generator")
)

register_loss = _REGISTRY.register
list_losses = _REGISTRY.names
loss_records = _REGISTRY.records
loss_record = _REGISTRY.__getitem__


def make_loss(
    name: str,
    *,
    num_classes: int | None = None,
    embedding_dim: int | None = None,
    miner: str | Miner | dict[str, Any] | None = None,
    generator: torch.Generator | None = None,
    **hyperparameters: Any,
) -> nn.Module:
    """Build an objective by name: an `nn.Module` called as `loss(embeddings, labels)`.

    `miner` is a name, a dict with `name` and its options, or a miner; None takes the objective's own default.
    """
    raise NotImplementedError


__all__ = ["Loss", "list_losses", "loss_record", "loss_records", "make_loss", "make_miner", "register_loss"]
