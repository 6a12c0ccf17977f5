"""Studies that come with the package: the grids of the papers' recipes, and the YAML files next to this one.

A file holds one experiment: a header of comments (Reproduces, Costs, Expect), the settings all its versions share
(`study`), and what each version changes (`versions`). The version `glyphs` of `zero-shot.yaml` is the preset
`zero-shot-glyphs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from oodml._errors import OodmlError
from oodml.data import list_batch_samplers, list_datasets
from oodml.encoders import PUBLISHED
from oodml.losses import list_losses, loss_record
from oodml.methods import list_methods
from oodml.miners import list_miners
from oodml.models import list_backbones
from oodml.recipes import grids
from oodml.study.settings import StudyConfig, changed

HEADER = ("Reproduces", "Costs", "Expect")


@dataclass(frozen=True)
class Preset:
    """One version of an experiment: its name, its header and its settings as in the file."""

    name: str
    experiment: str
    header: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def needs(self) -> list[str]:
        """What must be registered here before it can run, e.g. "dataset 'sop'"."""
        return needs(self.settings)

    def study(self, **changes: Any) -> StudyConfig:
        """The settings with `changes` (dotted keys change a part); refused where something it needs is missing."""
        settings = changed({"name": self.name, **self.settings}, changes)
        missing = needs(settings)
        if missing:
            raise OodmlError(f"The preset {self.name!r} needs {', '.join(missing)}, not registered here yet.")
        return StudyConfig(**settings)


@cache
def presets() -> Mapping[str, Preset]:
    """Every preset by its name."""
    files = [file for file in resources.files("oodml.study.presets").iterdir() if file.name.endswith(".yaml")]
    own = {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}
    experiments = sorted({**grids(), **own}.items())
    return {preset.name: preset for stem, text in experiments for preset in _read(stem, text)}


def load_preset(name: str, **changes: Any) -> StudyConfig:
    """The study of a preset; `changes` replace its values."""
    if name not in presets():
        raise unknown_preset(name)
    return presets()[name].study(**changes)


def load_preset_or_file(study: str, **changes: Any) -> StudyConfig:
    """A preset by its name, else a YAML file."""
    if study in presets():
        return load_preset(study, **changes)
    if Path(study).suffix in (".yaml", ".yml") or Path(study).exists():
        return StudyConfig.load(study, **changes)
    raise unknown_preset(study)


def matching_presets(part: str) -> list[Preset]:
    """The presets that have `part` in their name."""
    return [preset for name, preset in presets().items() if part.lower() in name]


def unknown_preset(name: str) -> OodmlError:
    """The error for an unknown name: the presets it is a part of, else the nearest ones."""
    if found := matching_presets(name):
        groups = (list(group) for _, group in groupby(found, key=lambda each: each.experiment))
        if len(found) == 1:
            return OodmlError(f"No preset is called {name!r}. Did you mean {found[0].name!r}?")
        names = ", ".join(_braced(group) for group in groups)
        return OodmlError(
            f"No preset is called {name!r}; these match it: {names}. `oodml study list {name}` describes them."
        )
    near = difflib.get_close_matches(name, presets(), n=3)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return OodmlError(
        f"There is no preset and no YAML file {name!r}.{hint} `oodml study list` shows all {len(presets())} presets."
    )


def _braced(versions: list[Preset]) -> str:
    """Versions of one experiment as a shell would write them: zero-shot-{cub200,glyphs}."""
    if len(versions) == 1:
        return versions[0].name
    stem = versions[0].experiment
    return f"{stem}-{{{','.join(each.name.removeprefix(stem + '-') for each in versions)}}}"


def _read(stem: str, text: str) -> list[Preset]:
    content = yaml.safe_load(text)
    shared = _header(text)
    versions = []
    for version, changes in content["versions"].items():
        changes = dict(changes or {})
        header = {**shared, **{key: changes.pop(key) for key in HEADER if key in changes}}
        settings = {**content["study"], **changes}
        if "run" in changes:
            settings["run"] = {**content["study"].get("run", {}), **changes["run"]}
        versions.append(Preset(f"{stem}-{version}", stem, header, settings))
    return versions


def _header(text: str) -> dict[str, str]:
    """The comment lines at the top, by their first word."""
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words = line.lstrip("# ")
        if words.partition(":")[0] in HEADER:
            key, _, words = words.partition(":")
            found[key] = ""
        if key:
            found[key] = f"{found[key]} {words.strip()}".strip()
    return found


def needs(settings: Mapping[str, Any]) -> list[str]:
    """One phrase for each name that is not registered, e.g. "batch sampler 'frd'"."""
    return list(dict.fromkeys(f"{kind} {name!r}" for kind, name in _needed(settings) if not _is_known(kind, name)))


def _needed(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for spec in (settings.get("dataset", "glyphs"), *(settings.get("transfer") or ())):
        yield "dataset", _name(spec)
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
    known = {"dataset": list_datasets, "batch sampler": list_batch_samplers, "miner": list_miners}
    return name in known[kind]()


def _is_timm(name: str) -> bool:
    from oodml.models.backbones.timm_models import import_timm

    return import_timm().is_model(name)
