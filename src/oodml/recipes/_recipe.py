"""What a recipe is: the settings of a paper's runs, its forms of losses and miners, its numbers of methods, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Setup:
    """What a paper's numbers depend on, apart from the method."""

    dataset: str | None  # the dataset whose numbers apply; None: none, so the plain defaults stay
    backbone: str
    embedding_dim: int


Fill = Callable[[Options, Setup], dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """The protocol of a paper. `losses`, `miners` and `methods` fill in what the user has not chosen."""

    name: str
    settings: Options  # of every run
    epochs: Mapping[str, int]  # by dataset
    losses: Mapping[str, Options] = field(default_factory=dict)  # the forms of losses, by their name
    losses_of_dataset: Mapping[str, Mapping[str, Options]] = field(default_factory=dict)  # by dataset, then loss
    losses_of_miner: Mapping[tuple[str, str], Options] = field(default_factory=dict)  # by loss and its miner
    miners: Mapping[str, Options] = field(default_factory=dict)
    methods: Mapping[str, Fill] = field(default_factory=dict)  # a method's options with the published ones
    batch: Mapping[str, Options] = field(default_factory=dict)  # settings of batches that a method or its loss has
    warmup: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by dataset, then method or loss
    inception: Options = field(default_factory=dict)  # settings that differ on an Inception backbone

    @property
    def datasets(self) -> list[str]:
        """The datasets that the paper has numbers for."""
        return list(self.epochs)

    def run(self, dataset: str | None, backbone: str | None = None) -> dict[str, Any]:
        """The settings of a run on a dataset; without one, CUB's number of epochs."""
        own = self.inception if backbone is not None and is_inception(backbone) else {}
        return {**self.settings, **own, "epochs": self.epochs[dataset or "cub200"]}

    def loss(self, given: Options, dataset: str | None) -> dict[str, Any]:
        """A loss in its published form, with its miner in the published form."""
        name = given["name"]
        found = {**self.losses.get(name, {}), **self.losses_of_dataset.get(dataset or "", {}).get(name, {}), **given}
        if found.get("miner") is None:
            return found
        found["miner"] = self.miner(found["miner"])
        miner = as_dict(found["miner"])
        return {**self.losses_of_miner.get((name, miner["name"] if miner else ""), {}), **found}

    def miner(self, spec: Any) -> Any:
        """A miner, and one that it wraps, in the published form; what is not a name or a dict with one stays."""
        given = as_dict(spec)
        if given is None:
            return spec
        found = {**self.miners.get(given["name"], {}), **given}
        return {**found, "base": self.miner(found["base"])} if "base" in found else found


def as_dict(spec: Any) -> dict[str, Any] | None:
    """A method, loss or miner as a dict with its name; None for anything else."""
    if isinstance(spec, str):
        return {"name": spec}
    return dict(spec) if isinstance(spec, Mapping) and isinstance(spec.get("name"), str) else None


def filled(given: Options, values: Options) -> dict[str, Any]:
    """`given`, with those of `values` that there are where it leaves an option open."""
    return {**given, **{key: value for key, value in values.items() if value is not None and given.get(key) is None}}


def of_dataset(table: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """What a table by dataset says; nothing for a dataset that it does not have."""
    return dict(table.get(setup.dataset or "", {}))


def at_dim(weight: float, dim: int) -> float:
    """A weight of a decorrelation that is printed for embeddings of 128 dimensions, for `dim`: r falls as 1/dim²."""
    return weight * (dim / 128) ** 2


def is_inception(backbone: str) -> bool:
    """Whether a backbone is GoogLeNet (Inception-V1) or a later Inception, with or without batch-norm."""
    return "inception" in backbone or "googlenet" in backbone
