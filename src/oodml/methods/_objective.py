"""From the spec of an objective (a name or a dict) to a loss module: the one place where methods build their losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from oodml._errors import OodmlError
from oodml.losses import Loss, PaperRate, loss_record, make_loss
from oodml.losses.crossbatch import CrossBatch
from oodml.methods._base import Context

Spec = str | Mapping[str, Any]

RHO_BASES = ("contrastive", "margin", "snr", "triplet")
RHO_BETA = 0.6
P_SWITCH = 0.3  # between the papers' values, 0.15 to 0.4 by dataset (oodml.recipes.revisiting)


def as_dict(spec: Spec, what: str = "loss") -> dict[str, Any]:
    """A spec as a dict with `name`."""
    if isinstance(spec, str):
        return {"name": spec}
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        return dict(spec)
    raise OodmlError(f"A {what} is a name or a dict with 'name' and its options, got {spec!r}.")


def expand(spec: Spec) -> dict[str, Any]:
    """The spec as a plain loss with its miner: {"name": "rho", ...} becomes its base with a rho miner."""
    options = as_dict(spec)
    if options["name"] != "rho":
        return options
    unknown = options.keys() - {"name", "base", "p_switch"}
    if unknown:
        raise OodmlError(f"The objective 'rho' takes base and p_switch, not {', '.join(sorted(unknown))}.")
    base = as_dict(options.get("base", "margin"), "base")
    if base["name"] not in RHO_BASES:
        raise OodmlError(
            f"rho works on losses over mined triplets: {', '.join(RHO_BASES)}; it has no form for {base['name']!r}."
        )
    if base["name"] == "margin":
        base.setdefault("beta", RHO_BETA)
    inner = base.pop("miner", None) or loss_record(base["name"]).default_miner
    return {**base, "miner": {"name": "rho", "base": inner, "p_switch": options.get("p_switch", P_SWITCH)}}


def make_objective(spec: Spec, context: Context, embedding_dim: int | None = None) -> Loss:
    """A fresh loss for a head of `embedding_dim` (the context's own size unless given)."""
    return make_loss(
        **expand(spec),
        num_classes=context.num_classes,
        embedding_dim=embedding_dim or context.embedding_dim,
        generator=context.generator,
    )


def own_groups(objective: Loss, base_lr: float) -> list[dict[str, Any]]:
    """What an objective learns itself, at the papers' rates, lifted to `base_lr` where the model learns faster.

    The papers' are meant beside a model that learns at 1e-5; a rate that the user chose is left alone.
    """
    groups = objective.param_groups(base_lr)
    if not isinstance(getattr(objective, "lr", None), PaperRate):
        return groups
    return [{**group, "lr": max(group["lr"], base_lr)} for group in groups]


def check_loss_base(spec: Spec, method: str) -> None:
    """Raise unless `spec` is a loss (or rho, which is one with another miner) that works; reads no data."""
    from oodml.methods import list_methods

    name = as_dict(spec, "base")["name"]
    if name in list_methods() and name != "rho":
        raise OodmlError(
            f"{method} trains encoders of its own with a loss as their base, and {name!r} is a method with its own: "
            f"give the loss (or rho) itself, e.g. base='margin'."
        )
    check_objective(spec)


def check_objective(spec: Spec) -> Loss:
    """Raise for an unknown name, an unknown option, a bad value or a miner where none is used; reads no data.

    The small loss it builds for that is returned: its `normalise` tells whether the objective lives on the sphere.
    """
    with torch.random.fork_rng(devices=[]):  # building draws initial values; the user's generator must not move
        return make_objective(spec, Context(num_classes=2, embedding_dim=8, feature_dim=8, total_steps=1))


def remembers(objective: Loss) -> bool:
    """Whether it keeps samples of past batches: of a mixture it would keep one sample under two labels."""
    return isinstance(objective, CrossBatch)
