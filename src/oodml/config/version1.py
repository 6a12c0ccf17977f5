"""Settings that version 1 recorded with its results, in the form of today, so that the results stay usable.

Version 1 filled in some numbers by the name of the dataset when it set up a method, and left them out of what it
recorded. Here they are written out. It cut training views from images of a short side of at most 256 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oodml.config.run import RunConfig, checked_settings
from oodml.recipes import Setup, as_dict, revisiting, s2sd
from oodml.recipes import oodml as oodml_paper

# Options of which None meant the papers' value.
_NUMBERS = {"p_switch", "gamma", "groups", "alpha", "decorrelation", "queue", "weights", "weight", "every", "hidden"}
CACHE_SIDE = 512  # of today's protocols


class Stale(Exception):
    """The same settings compute something else today; the text says why."""


def from_version_1(config: Mapping[str, Any], small_images: bool = False) -> list[RunConfig]:
    """Every way in which today's settings may say what a run of version 1 computed; raises `Stale` where none does.

    With `small_images` no image of the dataset was reduced for training: then any `cache_side` gives the same run.
    """
    settings = checked_settings(config)
    setup = Setup(settings.dataset_name, settings.backbone or "", settings.embedding_dim or 0)
    method = _written_out(settings.method, setup)
    _refuse_stale(method)
    sides = (None, CACHE_SIDE) if small_images else (None,)
    return [
        settings.model_copy(update={"method": each, "cache_side": side})
        for each in _spellings(method, setup.embedding_dim)
        for side in sides
    ]


def _written_out(spec: Any, setup: Setup) -> Any:
    """A method with the numbers that version 1 took from the name of the dataset; they held for every backbone."""
    given = as_dict(spec)
    if given is None:
        return spec
    given = {key: _written_out(value, setup) if key in ("base", "loss") else value for key, value in given.items()}
    given = {key: value for key, value in given.items() if value is not None or key not in _NUMBERS}
    if given["name"] == "rho" and given.get("p_switch") is None:
        resnet = Setup(setup.dataset, "resnet50", setup.embedding_dim)
        number = revisiting.p_switch(as_dict(given.get("base", "margin")) or {}, resnet)
        given |= {} if number is None else {"p_switch": number}
    elif given["name"] == "diva":
        given = oodml_paper.diva(given, setup)
    elif given["name"] == "uniform_prior":
        given = oodml_paper.uniform_prior(given, setup)
    elif given["name"] in ("s2sd", "distil"):
        given = s2sd.distil(given, setup)
    return given["name"] if given.keys() == {"name"} else given


def _spellings(method: Any, embedding_dim: int) -> list[Any]:
    """A method as recorded and, for S2SD, as today's recipes spell what computes the same: targets written out, no
    rate for the parameters of nested losses that have none."""
    given = as_dict(method) or {}
    found = [method]
    if given.get("name") != "s2sd":
        return found
    wider = [width for width in s2sd.TARGETS if width > embedding_dim]
    if given.get("targets") is None and wider == list(s2sd.TARGETS):
        found.append({**given, "targets": wider})
    if as_dict(given.get("base")) == {"name": "multisimilarity", "qualifying_only": True}:
        found += [{key: value for key, value in each.items() if key != "nested_lr"} for each in found]
    return found


def _refuse_stale(method: Any) -> None:
    for spec in _nested(method):
        if spec["name"] == "sharing":
            raise Stale("sharing shows every image to both tasks in an epoch now, and draws some triplets differently")
        if spec["name"] == "distil":
            raise Stale("distil identifies its teacher by the teacher's own settings now")
        if spec["name"] == "s2sd" and spec.get("topology") == "nested":
            raise Stale("nested distillation has the divisor of equation 7 now")
        if spec["name"] == "s2sd" and spec.get("topology") == "chained":
            raise Stale("chained distillation sorts its spaces by their width now")


def _nested(spec: Any) -> Iterator[Mapping[str, Any]]:
    given = as_dict(spec)
    if given is not None:
        yield given
        for key in ("base", "loss"):
            yield from _nested(given.get(key))
