"""Roth et al. 2020, "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning".

`revisiting` is what the authors' code does, and with it the published numbers were made; `revisiting-printed` is what
the paper prints. Both take torchvision's ImageNet weights. docs/fidelity.md lists where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oodml.recipes._recipe import Options, Recipe, Setup, as_dict, filled, is_inception

# The settings that the papers share. Weight decay is coupled (Adam's own) and reaches the model only.
SETTINGS: Options = {
    "backbone": "resnet50.tv_in1k",
    "train": "all",
    "lr": 1e-5,
    "weight_decay": 4e-4,  # as coded; see PRINTED_WEIGHT_DECAY
    "schedule": "constant",
    "batch_size": 112,
    "samples_per_class": 2,
    "sampler": "spc",
    "frozen_bn": True,
    "selection": "test",
    "embedding_dim": 128,
    "cache_side": 512,  # crops are cut from the original image; docs/fidelity.md
}
EPOCHS = {"cub200": 150, "cars196": 150, "sop": 100}  # supplement, captions of tables 4 to 6
PRINTED_WEIGHT_DECAY = 3e-4  # S2SD, supplement A.2: "we follow the setup used by Roth et al. 2020b"

# The forms of losses and miners in the authors' code.
_RAW_NORM = {"squared_norm": False}
LOSSES: Mapping[str, Options] = {
    "angular": {"one_positive": True, "clamp": 50.0, **_RAW_NORM},
    "arcface": {"clamp_negative": True},
    "contrastive": {"miner": "distance"},
    "genlifted": _RAW_NORM,
    "margin": {"normaliser": "triplets", "miner": "distance"},
    "multisimilarity": {"qualifying_only": True},
    "npair": {"one_positive": True, **_RAW_NORM},
    "proxyanchor": {"init": "normal"},
    "quadruplet": {"margin": 0.2, "margin2": 0.2, "fourth": "position", "miner": "distance"},
    "snr": {"miner": "distance"},
    "triplet": {"squared": True, "miner": "distance"},
}
LOSSES_OF_DATASET: Mapping[str, Mapping[str, Options]] = {
    "sop": {"histogram": {"bins": 11}, "normsoftmax": {"lr": 0.002}},
}
LOSSES_OF_MINER = {("snr", "distance"): {"lam": 0.0}}  # no penalty with this miner alone
MINERS: Mapping[str, Options] = {
    "distance": {"upper": None},  # the cut at 1.4 is commented out
    "rho": {"base": "distance"},
    "semihard": {"margin": 0.2},
}

# The forms that the supplement prints in A.1 and A.2, where the package has them.
PRINTED_LOSSES: Mapping[str, Options] = {
    "contrastive": {"miner": "distance"},
    "histogram": {"bins": 65},
    "margin": {"miner": "distance"},
    "proxynca": {"squared": False, "radius": 1.0},  # eq. 13
    "quadruplet": {"margin": 1.0, "margin2": 0.5, "miner": "distance"},  # below eq. 14
    "snr": {"lam": 0.005, "miner": "distance"},  # below eq. 15
    "triplet": {"squared": False, "miner": "distance"},  # eq. 2
}
PRINTED_LOSSES_OF_DATASET: Mapping[str, Mapping[str, Options]] = {"sop": {"histogram": {"bins": 11}}}
PRINTED_MINERS: Mapping[str, Options] = {
    "distance": {"upper": 1.4},  # below eq. 24
    "rho": {"base": "distance"},
    "semihard": {"margin": None},  # eq. 20
}

# p_switch of the regularised losses: ResNet50 as in the authors' scripts; Inception as in S2SD, supplement B.
P_SWITCH: Mapping[str, Mapping[str, float]] = {
    "cub200": {"contrastive": 0.4, "margin": 0.4, "margin β=1.2": 0.35, "triplet": 0.4, "snr": 0.3},
    "cars196": dict.fromkeys(("contrastive", "margin", "margin β=1.2", "triplet", "snr"), 0.35),
    "sop": dict.fromkeys(("contrastive", "margin", "margin β=1.2", "triplet", "snr"), 0.15),
}
P_SWITCH_INCEPTION = {"cub200": 0.15, "cars196": 0.15, "sop": 0.3}


def p_switch(base: Options, setup: Setup) -> float | None:
    """The probability for a base loss; None where the paper has none."""
    name = "margin β=1.2" if base["name"] == "margin" and base.get("beta") == 1.2 else base["name"]
    table = P_SWITCH.get(setup.dataset or "", {})
    return P_SWITCH_INCEPTION[setup.dataset] if setup.dataset and is_inception(setup.backbone) else table.get(name)


def rho(given: Options, setup: Setup) -> dict[str, Any]:
    """ρ-regularisation: p_switch, and the penalty of SNR, which the code leaves out with the miner `distance` alone."""
    base = as_dict(given.get("base", "margin"))
    if base is None:
        return dict(given)
    if base["name"] == "snr":
        base = filled(base, {"lam": 0.005})
    return filled({**given, "base": base}, {"p_switch": p_switch(base, setup)})


REVISITING = Recipe(
    "revisiting",
    SETTINGS,
    EPOCHS,
    losses=LOSSES,
    losses_of_dataset=LOSSES_OF_DATASET,
    losses_of_miner=LOSSES_OF_MINER,
    miners=MINERS,
    warmup={"sop": {"s2sd": 1.0}},  # S2SD, supplement A.2
)


def printed(recipe: Recipe, weight_decay: float, **changes: Any) -> Recipe:
    """A recipe with the printed weight decay and the printed forms of losses and miners."""
    return replace(
        recipe,
        name=f"{recipe.name}-printed",
        settings={**recipe.settings, "weight_decay": weight_decay},
        losses=PRINTED_LOSSES,
        losses_of_dataset=PRINTED_LOSSES_OF_DATASET,
        losses_of_miner={},
        miners=PRINTED_MINERS,
        **changes,
    )


RECIPES = (REVISITING, printed(REVISITING, PRINTED_WEIGHT_DECAY))
