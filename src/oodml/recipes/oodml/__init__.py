"""Milbich et al. 2021, "Characterizing Generalization under Out-Of-Distribution Shifts in Deep Metric Learning".

`oodml` is what the authors' scripts do. `oodml-printed` takes the weight decay of the supplement, 3e-4, the forms of
losses of `revisiting-printed`, and DiVA as its own paper has it; what the paper does not print stays as scripted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from oodml.recipes import revisiting, s2sd
from oodml.recipes._recipe import Options, Setup, as_dict, at_dim, filled, of_dataset

EPOCHS = {"cub200": 200, "cars196": 200, "sop": 150}  # section 4
PRINTED_WEIGHT_DECAY = 3e-4  # supplement B
# DiVA's weights of decorrelation are for embeddings of 128 dimensions each.
DIVA: Mapping[str, Options] = {
    "cub200": {"alpha": 0.3, "decorrelation": 1500.0, "queue": 30, "weights": [0.75, 1.25]},
    "cars196": {"alpha": 0.15, "decorrelation": 100.0, "queue": 30, "weights": [0.5, 1.5]},
    "sop": {"alpha": 0.2, "decorrelation": 150.0, "queue": 70, "weights": [1.0, 1.0]},
}
# Weights on the logits, and both auxiliary tasks under permuted labels.
DIVA_AS_CODED: Options = {"weighting": "batch", "sharing": "permuted", "intra": "permuted"}
UNIFORM_PRIOR: Mapping[str, Options] = {
    "cub200": {"weight": 0.2, "every": 10, "hidden": 100},
    "cars196": {"weight": 0.2, "every": 10, "hidden": 100},
    "sop": {"weight": 0.02, "every": 200, "hidden": 50},
}
# S2SD around R-margin (margin on SOP) from three targets, with average and maximum pooling and no delay but on SOP.
_TARGETS = {"targets": list(s2sd.TARGETS[1:])}
_POOLED = {**_TARGETS, "pooling": "avg+max", "feature_start": 0}
S2SD: Mapping[str, Options] = {
    "cub200": {"base": {"name": "rho", "base": "margin", "p_switch": 0.4}, **_POOLED},
    "cars196": {"base": {"name": "rho", "base": "margin", "p_switch": 0.3}, **_POOLED},
    "sop": {"base": "margin", **_TARGETS},
}
S2SD_ELSEWHERE: Options = {"base": {"name": "rho", "base": "margin"}, **_POOLED}


def s2sd_as_scripted(given: Options, setup: Setup, nested_lr: str = "base") -> dict[str, Any]:
    """S2SD as the scripts run it; a variant that is named keeps its pooling and its number of targets."""
    values = dict(S2SD.get(setup.dataset or "", S2SD_ELSEWHERE))
    if given.get("variant") is not None:
        values.pop("pooling", None)
    if not s2sd.has_several_targets(given):
        values.pop("targets")
    return s2sd.s2sd(filled(given, values), setup, nested_lr)


def rho(given: Options, setup: Setup) -> dict[str, Any]:
    """R-margin starts at β = 0.9 on SOP."""
    base = as_dict(given.get("base", "margin"))
    if base is not None and base["name"] == "margin" and setup.dataset == "sop":
        given = {**given, "base": filled(base, {"beta": 0.9})}
    return revisiting.rho(given, setup)


def diva(given: Options, setup: Setup, form: Options | None = None) -> dict[str, Any]:
    """DiVA's numbers, and the `form` of its tasks."""
    numbers = of_dataset(DIVA, setup)
    if numbers:
        numbers["decorrelation"] = at_dim(numbers["decorrelation"], setup.embedding_dim // 4)
    return filled(given, {**(form or {}), **numbers})


def uniform_prior(given: Options, setup: Setup) -> dict[str, Any]:
    """The prior's weight, the steps between updates of its discriminator, and the width of its layers."""
    return filled(given, of_dataset(UNIFORM_PRIOR, setup))


_OODML = replace(
    revisiting.REVISITING,
    name="oodml",
    settings={**revisiting.SETTINGS, "embedding_dim": 512},
    epochs=EPOCHS,
    methods={"rho": rho, "s2sd": s2sd_as_scripted, "diva": partial(diva, form=DIVA_AS_CODED)},
    batch={"diva": {"batch_size": 108}},
    warmup={"sop": {"s2sd": 1.0, "proxyanchor": 1.0}},
)
_PRINTED = {"rho": rho, "s2sd": partial(s2sd_as_scripted, nested_lr="own"), "diva": diva}
RECIPES = (_OODML, revisiting.printed(_OODML, PRINTED_WEIGHT_DECAY, methods=_PRINTED))
