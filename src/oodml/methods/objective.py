"""Build losses for methods, from a specification: a name, or a dict with the name and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from oodml._errors import OodmlError
from oodml.losses import Loss, PaperRate, TupleLoss, loss_record, make_loss
from oodml.losses.crossbatch import CrossBatch
from oodml.methods.base import Context

Spec = str | Mapping[str, Any]

RHO_BASES = ("contrastive", "margin", "snr", "triplet")
RHO_BETA = 0.6
P_SWITCH = 0.3  # between the papers' values, 0.15 to 0.4 by dataset (oodml.recipes.revisiting)


def as_dict(spec: Spec, what: str = "loss") -> dict[str, Any]:
    """A specification as a dict with `name`."""
    if isinstance(spec, str):
        return {"name": spec}
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        return dict(spec)
    raise OodmlError(f"A {what} is a name or a dict with 'name' and its options, got {spec!r}.")


def expand(spec: Spec) -> dict[str, Any]:
    """The specification as a loss with its miner: {"name": "rho", ...} becomes its base with a rho miner."""
    options = as_dict(spec)
    if options["name"] != "rho":
        return options
    unknown = options.keys() - {"name", "base", "p_switch"}
    if unknown:
        raise OodmlError(f"The objective 'rho' takes base and p_switch, not {', '.join(sorted(unknown))}.")
    base = as_dict(options.get("base", "margin"), "base")
    if base["name"] not in RHO_BASES:
        raise OodmlError(f"rho needs a loss over mined triplets ({', '.join(RHO_BASES)}), got {base['name']!r}.")
    if base["name"] == "margin":
        base.setdefault("beta", RHO_BETA)
    inner = base.pop("miner", None) or loss_record(base["name"]).default_miner
    return {**base, "miner": {"name": "rho", "base": inner, "p_switch": options.get("p_switch", P_SWITCH)}}


def make_objective(spec: Spec, context: Context, embedding_dim: int | None = None) -> Loss:
    """A new loss for a head of `embedding_dim` (default: that of the context)."""
    return make_loss(
        **expand(spec),
        num_classes=context.num_classes,
        embedding_dim=embedding_dim or context.embedding_dim,
        generator=context.generator,
    )


def task_objective(base: Spec, miner: Any, context: Context, dim: int, instead_of_proxies: Spec = "triplet") -> Loss:
    """The base loss on tuples of another `miner`; a triplet loss where the base takes no mined tuples (proxies)."""
    options = {key: value for key, value in expand(base).items() if key != "miner"}
    if not isinstance(check_objective(options), TupleLoss):
        options = as_dict(instead_of_proxies)
    return make_objective({**options, "miner": miner}, context, dim)


def own_groups(objective: Loss, base_lr: float) -> list[dict[str, Any]]:
    """Parameter groups of a loss's own parameters, at the papers' rates, but at least `base_lr`.

    The papers' rates go with a model that is trained at 1e-5. A rate that the user chose is not changed.
    """
    groups = objective.param_groups(base_lr)
    if not isinstance(getattr(objective, "lr", None), PaperRate):
        return groups
    return [{**group, "lr": max(group["lr"], base_lr)} for group in groups]


def check_loss_base(spec: Spec, method: str) -> None:
    """Raise unless `spec` is a valid loss, or rho, which is a loss with another miner; reads no data."""
    from oodml.methods.registry import list_methods

    name = as_dict(spec, "base")["name"]
    if name in list_methods() and name != "rho":
        raise OodmlError(
            f"{method} needs a loss (or rho) as base, and {name!r} is a method: give the loss itself, e.g. "
            "base='margin'."
        )
    check_objective(spec)


def check_objective(spec: Spec) -> Loss:
    """Raise for an unknown name or option, a bad value, or a miner that would have no effect; reads no data.

    Returns the small loss that was built for the check; its `normalise` says whether embeddings are normalised.
    """
    with torch.random.fork_rng(devices=[]):  # building draws initial values; the global random state must not change
        return make_objective(spec, Context(num_classes=2, embedding_dim=8, feature_dim=8, total_steps=1))


def remembers(objective: Loss) -> bool:
    """Whether a loss keeps samples of past batches: it would keep a mixture of two samples under both labels."""
    return isinstance(objective, CrossBatch)
