"""Roth et al. 2021, "S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning".

`s2sd` is what the authors' code does. `s2sd-printed` takes what the paper prints: the forms of losses of
`revisiting-printed`, the boundaries' own learning rate (supplement B) and the weight decay of section 4.2, 4e-5.
The supplement prints another one, 3e-4: set `weight_decay` for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from oodml.recipes._recipe import Options, Setup, as_dict, filled, of_dataset
from oodml.recipes.revisiting import REVISITING, printed

PRINTED_WEIGHT_DECAY = 4e-5  # section 4.2
GAMMA: Mapping[str, Options] = {"cub200": {"gamma": 50.0}, "cars196": {"gamma": 50.0}, "sop": {"gamma": 5.0}}
TARGETS = (512, 1024, 1536, 2048)  # section 4.2: MSD
BETA_SOP = 0.9  # supplement A.2 and B: of the margin loss inside S2SD


def s2sd(given: Options, setup: Setup, nested_lr: str = "base") -> dict[str, Any]:
    """γ, the four targets of the multi-target variants, features distilled after 1,000 steps.

    In the code, the boundaries β of margin and R-margin learn at the base rate, by accident. Other bases have no such
    rate in the published runs.
    """
    values: dict[str, Any] = {"feature_start": 1000, **of_dataset(GAMMA, setup)}
    if has_several_targets(given):
        values["targets"] = list(TARGETS)
    base = as_dict(given.get("base")) or {"name": None}
    if base["name"] == "margin" and setup.dataset == "sop":
        given = {**given, "base": filled(base, {"beta": BETA_SOP})}
    inner = as_dict(base.get("base", "margin")) if base["name"] == "rho" else base
    if inner is not None and inner["name"] == "margin":
        values["nested_lr"] = nested_lr
    return filled(given, values)


def has_several_targets(given: Options) -> bool:
    """Whether a variant distils from several targets (MSD…); DSD and DSDA have one."""
    return str(given.get("variant", "msdf")).startswith("m")


def distil(given: Options, setup: Setup) -> dict[str, Any]:
    """The student of a finished teacher (table 7)."""
    return filled(given, of_dataset(GAMMA, setup))


_S2SD = replace(
    REVISITING,
    name="s2sd",
    settings={**REVISITING.settings, "method": "s2sd"},
    inception={"frozen_bn": False},  # section 4.2: frozen "whenever a ResNet50 is utilized"; table 2 marks exceptions
)
RECIPES = (_S2SD, printed(_S2SD, PRINTED_WEIGHT_DECAY, methods={"s2sd": partial(s2sd, nested_lr="own")}))
