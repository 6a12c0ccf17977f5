"""Where the numbers of a run come from: defaults of its backbone and depth of training, and the recipe of a paper."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from oodml._errors import OodmlError, unknown_name
from oodml.recipes import Recipe, Setup, as_dict, recipe, recipes

Protocol = str | Mapping[str, Any]

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


def default_backbone(train: str) -> str:
    """`tiny` is trained from scratch; a frozen backbone must be pretrained."""
    return "tf_efficientnet_lite0" if train == "head" else "tiny"


def default_values(backbone: str, train: str) -> dict[str, Any]:
    """The settings that belong to a backbone and a depth of training."""
    if train == "head":
        return {**_COMMON, **_HEAD}
    if backbone == "tiny":
        return {**_COMMON, **_TINY}
    return {**_COMMON, **_ALL, "lr": _LITE_LR if backbone.startswith("tf_efficientnet_lite") else _OTHER_LR}


def check_protocol(protocol: Protocol) -> None:
    """Raise unless it is the name of a protocol, or {"name": ..., "numbers": DATASET}."""
    given = as_dict(protocol)
    if given is None or given.keys() - {"name", "numbers"}:
        raise OodmlError(
            f"protocol: give a name ({', '.join(recipes())}) or a mapping with 'name' and 'numbers', the dataset whose "
            f'numbers to take, e.g. {{"name": "oodml", "numbers": "cub200"}}; got {protocol!r}.'
        )
    known = recipe(given["name"]).datasets
    if given.get("numbers") is not None and given["numbers"] not in known:
        raise unknown_name("value of protocol's numbers:", given["numbers"], known)


def applied(protocol: Protocol, dataset: str) -> tuple[Recipe, str | None]:
    """The recipe of a protocol, and the dataset whose numbers apply: the one it names, else `dataset` if it has it."""
    given = as_dict(protocol) or {}
    found = recipe(given["name"])
    return found, given.get("numbers") or (dataset if dataset in found.datasets else None)


def warn_without_numbers(protocol: Protocol, dataset: str) -> None:
    """Say that a protocol has no numbers for a dataset, so that its methods keep their plain defaults."""
    found, numbers = applied(protocol, dataset)
    if numbers is None:
        warnings.warn(
            f"The protocol {found.name!r} has no numbers for the dataset {dataset!r}: methods keep their plain "
            f"defaults (p_switch, γ, ...), and the number of epochs is that of cub200. To take the numbers of one of "
            f'{", ".join(found.datasets)}, name it: protocol={{"name": "{found.name}", "numbers": "cub200"}}.',
            stacklevel=2,
        )


def written_out(spec: Any, found: Recipe, setup: Setup) -> dict[str, Any]:
    """A method with the published numbers, and the published forms of all that it wraps, where the user chose none."""
    from oodml.methods import wrapped_option

    given = as_dict(spec)
    if given is None:  # refused where the method is made
        return spec
    if given["name"] in found.methods:
        given = found.methods[given["name"]](given, setup)
    wrapped = wrapped_option(given)
    if wrapped is None:
        return found.loss(given, setup.dataset)
    option, inner = wrapped
    if given.get("miner") is not None and (loss := as_dict(inner)):  # it is that of the wrapped loss
        inner = {**loss, "miner": given.pop("miner")}
    return {**given, option: written_out(inner, found, setup)}


def with_numbers_of(spec: Any, dataset: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """The method of a run of an earlier version, in which DiVA took its test weights from the name of the dataset."""
    papers = recipe("oodml-printed")
    weights_only = Recipe("", {}, papers.epochs, methods={"diva": papers.methods["diva"]})
    numbers = dataset if dataset in papers.datasets else None
    return written_out(spec, weights_only, Setup(numbers, "", context["embedding_dim"]))


def names_in(method: Mapping[str, Any]) -> list[str]:
    """The name of a method, and those of all that it wraps."""
    from oodml.methods import wrapped_option

    _, inner = wrapped_option(method) or ("", None)
    given = as_dict(inner)
    return [method["name"], *(names_in(given) if given else ())]


def batch_values(method: Mapping[str, Any], found: Recipe) -> dict[str, Any]:
    """How batches differ from the protocol's for a method or the loss in it."""
    return {key: value for name in names_in(method) for key, value in found.batch.get(name, {}).items()}


def warmup_epochs(method: Mapping[str, Any], found: Recipe, dataset: str | None) -> float:
    """Epochs at the start in which the backbone is not trained."""
    table = found.warmup.get(dataset or "", {})
    return max((table.get(name, 0.0) for name in names_in(method)), default=0.0)
