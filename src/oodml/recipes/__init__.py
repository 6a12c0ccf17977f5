"""The papers, as plain data that imports nothing of the package but its errors.

One sub-package per paper holds all of it: its protocol, the forms of its losses, the numbers that belong to a dataset,
the grids of its experiments (a YAML file each) and its published tables (`tables.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from typing import Any

from oodml._errors import unknown_name
from oodml.recipes import oodml, revisiting, s2sd, sharing
from oodml.recipes._recipe import Fill, Recipe, Setup, as_dict

PAPERS = ("oodml", "revisiting", "s2sd", "sharing")
# The numbers of a method come from the paper that has them, whatever the protocol, unless a protocol has its own.
METHODS: Mapping[str, Fill] = {
    "rho": revisiting.rho,
    "s2sd": s2sd.s2sd,
    "distil": s2sd.distil,
    "diva": oodml.diva,
    "uniform_prior": oodml.uniform_prior,
}


def _with_methods(each: Recipe) -> Recipe:
    """A protocol with the numbers of all methods; `sharing` samples φ* up to the protocol's own cut."""
    cut = partial(sharing.sharing, upper=each.miners["distance"]["upper"])
    return replace(each, methods={**METHODS, "sharing": cut, **each.methods})


_RECIPES = {each.name: _with_methods(each) for paper in (revisiting, s2sd, oodml, sharing) for each in paper.RECIPES}


def recipes() -> list[str]:
    """The names of all protocols."""
    return list(_RECIPES)


def recipe(name: str) -> Recipe:
    """The protocol of that name."""
    if name not in _RECIPES:
        raise unknown_name("protocol", name, _RECIPES)
    return _RECIPES[name]


@cache
def grids() -> Mapping[str, str]:
    """The grids of the papers' experiments, YAML text by the name of the experiment."""
    files = (file for paper in PAPERS for file in resources.files(f"oodml.recipes.{paper}").iterdir())
    return {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8")
        for file in files
        if file.name.endswith(".yaml")
    }


@cache
def tables() -> Mapping[str, Any]:
    """The published tables of all papers under "tables", and the FID of the official splits under "fids"."""
    papers = [
        json.loads(resources.files(f"oodml.recipes.{paper}").joinpath("tables.json").read_text(encoding="utf-8"))
        for paper in PAPERS
    ]
    fids = {key: value for paper in papers for key, value in paper.get("fids", {}).items()}
    return {"fids": fids, "tables": {key: table for paper in papers for key, table in paper["tables"].items()}}


__all__ = ["Recipe", "Setup", "as_dict", "grids", "recipe", "recipes", "tables"]
