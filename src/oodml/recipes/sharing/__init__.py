"""Milbich et al. 2020, "Sharing Matters for Generalization in Deep Metric Learning"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oodml.recipes._recipe import Options, Setup, as_dict, at_dim, filled
from oodml.recipes.revisiting import REVISITING

GAMMA = {"cub200": 2000.0, "cars196": 500.0, "sop": 500.0}  # printed: chosen in [500, 2000]; table 7b for CARS
GROUPS = {"cub200": 30, "cars196": 150, "sop": 50}  # of MIC (Roth et al. 2019), whose groups the paper takes
DECORRELATED = "both+sep+decor"


def sharing(given: Options, setup: Setup, upper: float | None = None) -> dict[str, Any]:
    """γ for encoders that are half the embedding each, and the number of groups where there are any.

    φ* is sampled up to `upper`, the protocol's own cut of the miner `distance`, or up to that of the base.
    """
    base = as_dict(given.get("base", "margin")) or {}
    if "upper" not in (as_dict(base.get("miner")) or {}):
        given = {"upper": upper, **given}
    values: dict[str, Any] = {}
    if setup.dataset in GAMMA:
        if given.get("variant", DECORRELATED) == DECORRELATED:
            values["gamma"] = at_dim(GAMMA[setup.dataset], setup.embedding_dim // 2)
        if given.get("triplets") == "groups":
            values["groups"] = GROUPS[setup.dataset]
    return filled(given, values)


# Section 4: 4 images per class, 1 for ProxyNCA, 2 for N-pair; images resized to 256 × 256, then cropped at random.
RECIPES = (
    replace(
        REVISITING,
        name="sharing",
        settings={
            **REVISITING.settings,
            "embedding_dim": 256,
            "samples_per_class": 4,
            "method": "sharing",
            "transform": "crop",
        },
        batch={"proxynca": {"samples_per_class": 1}, "npair": {"samples_per_class": 2}},
        inception={"lr": 1e-4},  # GoogLeNet
    ),
)
