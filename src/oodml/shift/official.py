"""Read the splits and episodes that the authors of ooDML published: their pickles, or the JSON made from them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._files import explained
from oodml._split import Episode, Split, Splits

# What a pickle of plain data and numpy numbers refers to; anything else could run code when it is loaded.
_HARMLESS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),  # how protocol 5 writes arrays
    ("_codecs", "encode"),  # how protocol 2 writes bytes
    ("collections", "OrderedDict"),
}
_HAS_NEW_CORE = int(np.__version__.partition(".")[0]) >= 2  # numpy 2 moved it and warns about the old name
_NAMES = {"sop": "online_products"}  # ours -> theirs
FILES = ("oodml_official_splits.json", "{dataset}_splits.pkl")  # where official splits are looked for by themselves
# The default split of a benchmark: which of the official splits it is, and its numbers of train and test classes.
DEFAULTS = {"cub200": ("official-3", 100, 100), "cars196": ("official-1", 98, 98), "sop": ("official-1", 11318, 11316)}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS:
            here = module.replace("numpy.core", "numpy._core") if _HAS_NEW_CORE else module
            return super().find_class(here, name)
        raise OodmlError(
            f"The pickle refers to {module}.{name}, which is not plain data; it was not loaded, because loading it "
            "could run any program. An official ooDML split file holds lists, dictionaries, text and numbers only."
        )


def load_official(path: str | Path, dataset: str) -> Splits:
    """Read the official ooDML splits of a data set.

    Args:
        path: `*_splits.pkl` of the authors' repository (read without running anything it contains), or a JSON file
            `dataset -> id -> {train, test, split_val, fid}`.
        dataset: "cub200", "cars196" or "sop", the name the splits carry.

    Returns:
        The splits ordered by id and named official-1, official-2, …, with the published class-mean FID (ResNet-50).
        Few-shot episodes come along where they list images of every test class.
    """
    content = _read(Path(path).expanduser())
    known = {key: content[key] for key in content if not str(key).startswith("_")}
    if known and all(isinstance(value, Mapping) and "train" in value for value in known.values()):
        by_id = known  # one data set, as in the pickles
    else:
        theirs = dataset if dataset in known else _NAMES.get(dataset, dataset)
        if theirs not in known:
            raise unknown_name(f"data set in {path}:", dataset, [str(key) for key in known])
        by_id = known[theirs]
    if not by_id:
        raise OodmlError(f"{path} holds no splits of {dataset!r}.")
    return Splits(_official_split(dataset, str(i), by_id[i], Path(path).name) for i in sorted(by_id, key=_as_number))


def official_at_hand(dataset: str) -> Splits:
    """The official splits of a data set where a file lies in the current folder or under $OODML_DATA; else none."""
    if dataset not in DEFAULTS:
        return Splits()
    for folder in (Path(), Path(os.environ.get("OODML_DATA") or "data").expanduser()):
        for name in FILES:
            path = folder / name.format(dataset=_NAMES.get(dataset, dataset))
            with contextlib.suppress(OodmlError):  # no such file, or one of other data sets
                return load_official(path, dataset)
    return Splits()


def is_default(split: Split) -> bool:
    """Whether a split is the default one of its data set, validation classes aside.

    CUB and CARS train on the first half of their sorted classes. Of others the class lists alone do not show it: there
    it is the split named so, or the one that a construction from the default split starts from.
    """
    if split.test_dataset is not None:
        return False
    name, train, test = DEFAULTS.get(split.dataset, ("default", len(split.train), len(split.test)))
    if (len(split.train), len(split.test)) != (train, test):
        return False
    if split.dataset in ("cub200", "cars196"):
        return max(split.train) < min(split.test)
    made = split.provenance
    built_from_default = "recipe" in made or made.get("start") == "default"  # as studies and `oodml splits build` do
    return split.name in ("default", name) or (made.get("stage") == "start" and built_from_default)


def names_by_content(split: Split, official: Sequence[Split] = ()) -> frozenset[str]:
    """The names that a split goes by: its own, and those of the default and the official splits with the same classes.

    A benchmark's "default" and the official split it equals are only names of a split that has those classes.
    """
    default = {"default", DEFAULTS[split.dataset][0]} if split.dataset in DEFAULTS else {"default"}
    names = {split.name} | default if is_default(split) else {split.name} - default
    sides = set(split.train), set(split.test)
    return frozenset(names | {each.name for each in official if (set(each.train), set(each.test)) == sides})


def load_official_episodes(path: str | Path, dataset: str) -> dict[str, dict[int, list[Episode]]]:
    """Read published few-shot episodes: split id -> shots -> episodes -> class -> file names."""
    content = _read(Path(path).expanduser())
    theirs = dataset if dataset in content else _NAMES.get(dataset, dataset)
    if theirs not in content:
        raise unknown_name(f"data set in {path}:", dataset, [str(k) for k in content if not str(k).startswith("_")])
    return {str(i): {int(s): list(e) for s, e in shots.items()} for i, shots in content[theirs].items()}


def _official_split(dataset: str, number: str, entry: Mapping[str, Any], file: str) -> Split:
    for key in ("train", "test"):
        if key not in entry:
            raise OodmlError(f"{file}: split {number} lacks {key!r}; is this an official ooDML split file?")
    train, test = ([str(name) for name in entry[side]] for side in ("train", "test"))
    split = Split(
        train=train,
        test=test,
        val=[str(name) for name in entry.get("split_val", ())],
        name=f"official-{number}",
        dataset=dataset,
        fid=float(entry["fid"]) if entry.get("fid") is not None else None,
        provenance={"made_by": "Milbich et al. 2021, ooDML", "id": number, "file": file, "backbone": "resnet50"},
    )
    episodes = {
        int(shots): [{str(c): [str(n) for n in images] for c, images in each.items()} for each in listed]
        for shots, listed in (entry.get("test_episodes") or {}).items()
        if all(isinstance(each, Mapping) for each in listed)  # SOP lists whole classes instead: another protocol
    }
    return replace(split, episodes=episodes)


def _read(path: Path) -> Mapping[Any, Any]:
    if not path.is_file():
        raise OodmlError(f"There is no file {path} with official splits. Check the path.")
    with explained("read", path):
        raw = path.read_bytes()
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        content = json.loads(raw) if raw.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(raw)).load()
    except OodmlError as error:
        raise OodmlError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise OodmlError(
            f"{path} could not be read as an official split file ({type(error).__name__}: {error}). "
            "Expected the authors' pickle, or JSON."
        ) from error
    if not isinstance(content, Mapping):
        raise OodmlError(f"{path} holds a {type(content).__name__}, not a table of splits.")
    return content


def _as_number(key: Any) -> tuple[int, str]:
    text = str(key)
    return (int(text), "") if text.lstrip("-").isdigit() else (1 << 30, text)
