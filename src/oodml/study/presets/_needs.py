"""What a study asks for that is not registered: data sets, batch samplers, backbones, methods, losses, miners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oodml.data import list_batch_samplers, list_datasets
from oodml.encoders import PUBLISHED
from oodml.losses import list_losses, loss_record
from oodml.methods import list_methods
from oodml.miners import list_miners
from oodml.models import list_backbones


def needs(settings: Mapping[str, Any]) -> list[str]:
    """One phrase for each name that nobody has registered, e.g. "batch sampler 'frd'"."""
    return list(dict.fromkeys(f"{kind} {name!r}" for kind, name in _asked(settings) if not _is_known(kind, name)))


def _asked(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for spec in (settings.get("dataset", "glyphs"), *(settings.get("transfer") or ())):
        yield "data set", _name(spec)
    methods = settings.get("methods", {})
    for spec in methods if isinstance(methods, list) else methods.values():
        yield from _in_method(spec)
    for run in (settings.get("run", {}), *(settings.get("settings") or {}).values()):
        if "sampler" in run:
            yield "batch sampler", _name(run["sampler"])
        if "backbone" in run:
            yield "backbone", run["backbone"]
    backbones = settings.get("backbones") or ()
    backbones = backbones.values() if isinstance(backbones, Mapping) else backbones
    for backbone in (*backbones, *(settings.get("generic") or ())):
        yield "backbone", backbone


def _in_method(spec: str | Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "method or loss", _name(spec)
    if isinstance(spec, Mapping):
        for key in ("base", "loss"):
            if key in spec:
                yield from _in_method(spec[key])
        if spec.get("miner") is not None:
            yield "miner", _name(spec["miner"])


def _name(spec: str | Mapping[str, Any]) -> str:
    return spec if isinstance(spec, str) else spec["name"]


def _is_known(kind: str, name: str) -> bool:
    if kind == "method or loss":
        aliases = {alias for each in list_losses() for alias in loss_record(each).aliases}
        return name in list_methods() or name in list_losses() or name in aliases
    if kind == "backbone":
        return name in list_backbones() or name in PUBLISHED or _is_timm(name)
    known = {"data set": list_datasets, "batch sampler": list_batch_samplers, "miner": list_miners}
    return name in known[kind]()


def _is_timm(name: str) -> bool:
    from oodml.models.backbones._timm import import_timm

    return import_timm().is_model(name)
