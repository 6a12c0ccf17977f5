"""Numbers of a run that belong to its backbone, its depth of training or a paper's protocol, not to its method.

A value the user gives always wins; then the protocol; then backbone and depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oodml._errors import unknown_name

# Optimiser and batch defaults (DESIGN.md, "Training"), measured on glyphs (tiny) and on CUB and CARS (the others).
_TINY = {
    "lr": 2e-3,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "samples_per_class": 4,
    "embedding_dim": 64,
    "steps": 200,
}
_HEAD = {"lr": 1e-4, "weight_decay": 0.0, "schedule": "cosine", "samples_per_class": 2, "embedding_dim": 128}
_HEAD |= {"steps": 1500, "views": 8, "crop_scale": (0.35, 1.0)}
_ALL = {"weight_decay": 4e-4, "schedule": "constant", "samples_per_class": 2, "embedding_dim": 128, "epochs": 40}
_LITE_LR, _OTHER_LR = 1e-4, 1e-5  # EfficientNet-Lite; ResNet and whatever else is pretrained
_COMMON = {"batch_size": 112, "sampler": "spc", "warmup": 0.0, "selection": "val", "views": 8}

# Papers' protocols (SPEC.md C). Weight decay is coupled, and as coded: the papers print 3e-4 and 4e-5.
_PAPERS = {
    "backbone": "resnet50",
    "train": "all",
    "lr": 1e-5,
    "weight_decay": 4e-4,
    "schedule": "constant",
    "batch_size": 112,
    "samples_per_class": 2,
    "sampler": "spc",
    "frozen_bn": True,
    "selection": "test",
}
_EPOCHS_150 = {"cub200": 150, "cars196": 150, "sop": 100}
_EPOCHS_200 = {"cub200": 200, "cars196": 200, "sop": 150}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "revisiting": {**_PAPERS, "embedding_dim": 128, "epochs": _EPOCHS_150},
    "s2sd": {**_PAPERS, "embedding_dim": 128, "epochs": _EPOCHS_150, "method": "s2sd"},
    "oodml": {**_PAPERS, "embedding_dim": 512, "epochs": _EPOCHS_200},
    "sharing": {
        **_PAPERS,
        "embedding_dim": 256,
        "epochs": _EPOCHS_150,
        "samples_per_class": 4,
        "method": "sharing",
        "transform": "crop",
    },
}

# The forms of losses and miners that produced the published numbers (SPEC.md D, E), chosen by every protocol.
_MINER_FORMS: Mapping[str, Mapping[str, Any]] = {
    "distance": {"upper": None},
    "rho": {"base": "distance"},
    "semihard": {"margin": 0.2},
}
_RAW_NORM = {"squared_norm": False}
_FORMS: Mapping[str, Mapping[str, Any]] = {
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
_FORMS_SOP: Mapping[str, Mapping[str, Any]] = {"histogram": {"bins": 11}, "normsoftmax": {"lr": 0.002}}
_DEFAULT_BASE = {
    "plain": ("loss", "margin"),
    **dict.fromkeys(("s2sd", "distil"), ("base", "multisimilarity")),
    **dict.fromkeys(("rho", "sharing", "diva", "uniform_prior", "mixup"), ("base", "margin")),
}
# DiVA as in ooDML's code: weights on the logits, and both auxiliary tasks under permuted labels.
_DIVA_OODML = {"weighting": "batch", "sharing": "permuted", "intra": "permuted"}


def protocol_values(protocol: str, dataset: str) -> dict[str, Any]:
    """The settings of a paper's protocol for a data set; a set the papers do not have takes CUB's number of epochs."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    values = dict(PROTOCOLS[protocol])
    values["epochs"] = values["epochs"].get(dataset, values["epochs"]["cub200"])
    return values


def default_backbone(train: str) -> str:
    """`tiny` learns from nothing; a backbone that stands still must have learnt before."""
    return "tf_efficientnet_lite0" if train == "head" else "tiny"


def default_values(backbone: str, train: str) -> dict[str, Any]:
    """The settings that belong to a backbone and a depth of training."""
    if train == "head":
        return {**_COMMON, **_HEAD}
    if backbone == "tiny":
        return {**_COMMON, **_TINY}
    return {**_COMMON, **_ALL, "lr": _LITE_LR if backbone.startswith("tf_efficientnet_lite") else _OTHER_LR}


def protocol_forms(method: str | Mapping[str, Any], protocol: str, dataset: str) -> dict[str, Any]:
    """The method with the published forms of its losses wherever the user has not chosen otherwise."""
    given = _as_dict(method)
    name = given["name"]
    if name not in _DEFAULT_BASE:
        return _loss_forms(given, dataset)
    key, default = _DEFAULT_BASE[name]
    published = _s2sd_options(protocol, dataset) if name == "s2sd" else {}
    if name == "diva" and protocol == "oodml":
        published = _DIVA_OODML
    given = {key: default, **published, **given}
    chosen = _rho_base(given[key], protocol, dataset) if name == "rho" else given[key]
    if name == "plain" and given.get("miner") is not None:  # its miner is that of its loss
        chosen = {**_as_dict(chosen), "miner": given.pop("miner")}
    return {**given, key: protocol_forms(chosen, protocol, dataset)}


def _loss_forms(given: dict[str, Any], dataset: str) -> dict[str, Any]:
    """A loss, and its miner, in their published forms. Only with the miner `distance` SNR goes without its penalty."""
    name = given["name"]
    if name == "crossbatch":  # its miner is that of its base
        own = {"miner": given["miner"]} if given.get("miner") is not None else {}
        found = _loss_forms({**_as_dict(given.get("base", "contrastive")), **own}, dataset)
        return {**{key: value for key, value in given.items() if key != "miner"}, "base": found}
    found = {**_FORMS.get(name, {}), **(_FORMS_SOP.get(name, {}) if dataset == "sop" else {}), **given}
    if found.get("miner") is None:
        return found
    miner = found["miner"] = _miner_form(found["miner"])
    if name == "snr" and isinstance(miner, Mapping) and miner["name"] == "distance":
        found = {"lam": 0.0, **found}
    return found


def _miner_form(spec: Any) -> Any:
    """A miner, and one that it wraps, in the published form; what is no name and no dict with one stays as it is."""
    given = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping) or "name" not in given:
        return spec
    found = {**_MINER_FORMS.get(given["name"], {}), **given}
    return {**found, "base": _miner_form(found["base"])} if "base" in found else found


def protocol_warmup(method: Mapping[str, Any], protocol: str, dataset: str) -> float:
    """Epochs in which the backbone stands still: on SOP, one for the heads of S2SD and, in ooDML, for the proxies."""
    proxies = protocol == "oodml" and method.get("loss", {}).get("name") == "proxyanchor"
    return 1.0 if dataset == "sop" and (proxies or method["name"] == "s2sd") else 0.0


def protocol_batch(method: Mapping[str, Any], protocol: str) -> dict[str, int]:
    """How batches differ from the protocol's for a method: ooDML gives DiVA 108 images; Sharing Matters one image a
    class for ProxyNCA and two for N-pair."""
    if method["name"] == "diva" and protocol == "oodml":
        return {"batch_size": 108}
    base = method.get("base", {})
    spc = {"proxynca": 1, "npair": 2}.get(base.get("name")) if method["name"] == "sharing" else None
    return {"samples_per_class": spc} if spc and protocol == "sharing" else {}


def _s2sd_options(protocol: str, dataset: str) -> dict[str, Any]:
    """S2SD as published: nested losses learn at the base rate (by accident), features come in after 1,000 steps; ooDML
    distils R-margin (margin on SOP) from three targets with avg+max pooling and no delay (neither on SOP)."""
    options: dict[str, Any] = {"nested_lr": "base", "feature_start": 1000}
    if protocol != "oodml":
        return options
    if dataset == "sop":
        return {**options, "base": {"name": "margin", "beta": 0.9}, "targets": [1024, 1536, 2048]}
    base = {"name": "rho", "base": "margin", "p_switch": 0.3 if dataset == "cars196" else 0.4}
    return {**options, "base": base, "targets": [1024, 1536, 2048], "pooling": "avg+max", "feature_start": 0}


def _rho_base(base: str | Mapping[str, Any], protocol: str, dataset: str) -> dict[str, Any]:
    """What differs for a base under rho: SNR keeps its regulariser, and R-margin on SOP starts at .9 in ooDML."""
    given = _as_dict(base)
    if given["name"] == "snr":
        return {"lam": 0.005, **given}
    if given["name"] == "margin" and protocol == "oodml" and dataset == "sop":
        return {"beta": 0.9, **given}
    return given


def _as_dict(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """A method, loss or miner as a dict with its name."""
    return {"name": spec} if isinstance(spec, str) else dict(spec)
