"""Objectives: one a file, formula and paper in the docstring; this room imports miners only."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from oodml._errors import OodmlError
from oodml._registry import Registry
from oodml.losses._base import Loss, Wrapped
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
) -> Loss:
    """Build an objective by name: an `nn.Module` called as `loss(embeddings, labels)`.

    `miner` is a name, a dict with `name` and its options, or a miner; None takes the objective's own default.
    `generator` is the source of randomness of the miner and of the initial proxies.
    """
    record = loss_record(name)
    takes_miner = record.takes_any_keyword or "miner" in inspect.signature(record.factory).parameters
    if miner is not None and not takes_miner:
        raise OodmlError(
            f"The loss {record.name!r} mines no tuples, so miner={miner!r} would have no effect. Leave miner out."
        )
    context = {
        "num_classes": num_classes,
        "embedding_dim": embedding_dim,
        "generator": generator,
        "miner": _build_miner(record.default_miner if miner is None else miner, generator),
    }
    loss = _REGISTRY.make(name, context=context, **hyperparameters)
    if not isinstance(loss, nn.Module):
        raise OodmlError(
            f"The factory of loss {record.name!r} made a {type(loss).__name__}; expected an nn.Module that is called "
            "as loss(embeddings, labels)."
        )
    return loss if isinstance(loss, Loss) else Wrapped(loss)


def _build_miner(spec: str | Miner | dict[str, Any] | None, generator: torch.Generator | None) -> Miner | None:
    if isinstance(spec, dict):
        options = dict(spec)
        if "name" not in options:
            raise OodmlError(f"A miner given as a dict needs a 'name', got {spec!r}.")
        return make_miner(options.pop("name"), generator=generator, **options)
    if isinstance(spec, str):
        return make_miner(spec, generator=generator)
    if spec is None or callable(spec):
        return spec
    raise OodmlError(f"miner must be a name, a dict with a 'name', a miner or None, got {spec!r}.")


__all__ = ["Loss", "list_losses", "loss_record", "loss_records", "make_loss", "register_loss"]
