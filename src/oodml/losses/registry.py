"""The registry of losses, and how a loss is made from its name."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from oodml._checks import require_generator
from oodml._errors import OodmlError
from oodml._registry import Registry
from oodml.losses.base import Loss, Wrapped
from oodml.miners import Miner, build_miner

REGISTRY = Registry(
    "loss", "oodml.losses", "oodml.losses", context=("num_classes", "embedding_dim", "miner", "generator")
)

register_loss = REGISTRY.register
list_losses = REGISTRY.names
loss_records = REGISTRY.records
loss_record = REGISTRY.__getitem__


def make_loss(
    name: str,
    *,
    num_classes: int | None = None,
    embedding_dim: int | None = None,
    miner: str | Miner | dict[str, Any] | None = None,
    generator: torch.Generator | None = None,
    **hyperparameters: Any,
) -> Loss:
    """Build a loss by name: an `nn.Module` called as `loss(embeddings, labels)`.

    `miner` is a name, a dict with `name` and its options, or a miner; None: the default of the loss.
    `generator` is the source of randomness of the miner and of the initial proxies.
    """
    require_generator(generator)
    record = loss_record(name)
    wanted = inspect.signature(record.factory).parameters
    if miner is not None and "miner" not in wanted:
        raise OodmlError(
            f"The loss {record.name!r} mines no tuples, so miner={miner!r} would have no effect. Leave miner out."
        )
    chosen = record.default_miner if miner is None else miner
    context = {
        "num_classes": num_classes,
        "embedding_dim": embedding_dim,
        "generator": generator,
        "miner": None if chosen is None else build_miner(chosen, generator),
    }
    # Only what the signature names: a factory that takes any keyword may pass it on to a library that does not know it.
    supplied = {key: value for key, value in context.items() if key in wanted}
    loss = REGISTRY.make(name, context=supplied, **hyperparameters)
    if not isinstance(loss, nn.Module):
        raise OodmlError(
            f"The factory of loss {record.name!r} made a {type(loss).__name__}; expected an nn.Module that is called "
            "as loss(embeddings, labels)."
        )
    return loss if isinstance(loss, Loss) else Wrapped(loss, num_classes if "num_classes" in supplied else None)
