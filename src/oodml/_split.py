"""`Split`: which classes to train on and which to test on, as a small JSON file. The one type of split in the package.

A file holds one split (`Split.save`, `Split.load`) or a series with the progression it was chosen from (`save_splits`,
`load_splits`). `"splits.json#shift-3"` names one split of a series wherever a split file is accepted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._files import explained, write_json

FORMAT = "oodml-split/1"
SERIES_FORMAT = "oodml-splits/1"
FID_MODES = ("class-means", "images")

Episode = dict[str, list[str]]  # class name -> names of its support images


@dataclass(frozen=True)
class Split:
    """Classes to train on and classes to test on.

    train, test   class names, none on both sides (unless they belong to two datasets)
    val           the part of `train` that model selection may look at
    fid, fid_mode their distance, over "class-means" (the published ooDML numbers) or "images"; None: not measured
    dataset       name of the dataset; `test_dataset`: where the test classes come from another one
    provenance    how the split was made
    episodes      shots -> episodes -> class -> support images; the query set is every other image of the test classes
    """

    train: list[str]
    test: list[str]
    val: list[str] = field(default_factory=list)
    name: str = "split"
    dataset: str = ""
    test_dataset: str | None = None
    fid: float | None = None
    fid_mode: str = "class-means"
    provenance: dict[str, Any] = field(default_factory=dict)
    episodes: dict[int, list[Episode]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.test_dataset == self.dataset:
            object.__setattr__(self, "test_dataset", None)
        for side in ("train", "test", "val"):
            object.__setattr__(self, side, _class_names(side, getattr(self, side)))
        if not self.train or not self.test:
            raise OodmlError(
                f"Split {self.name!r} needs classes on both sides; it has {len(self.train)} training and "
                f"{len(self.test)} test classes."
            )
        both = sorted(set(self.train) & set(self.test))
        if both and self.test_dataset is None:
            raise OodmlError(
                f"Split {self.name!r} has {_some(both)} on both sides. A class is either trained on or tested on: "
                "take it out of `train` or of `test`."
            )
        stray = sorted(set(self.val) - set(self.train))
        if stray:
            raise OodmlError(
                f"Split {self.name!r} has validation classes that are not training classes: {_some(stray)}. "
                "`val` must be a part of `train`."
            )
        if self.fid_mode not in FID_MODES:
            raise unknown_name("fid_mode", self.fid_mode, FID_MODES)
        object.__setattr__(self, "episodes", _checked_episodes(self))

    @property
    def fit(self) -> list[str]:
        """The training classes that are not held out for validation."""
        held_out = set(self.val)
        return [name for name in self.train if name not in held_out]

    def save(self, path: str | Path) -> None:
        """Write the split as JSON; an interrupted write leaves no partial file."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Split:
        """Read one split; `FILE#NAME` reads one of a series."""
        splits = load_splits(path)
        if len(splits) != 1:
            file, _ = split_address(path)
            raise OodmlError(
                f"{file} holds {len(splits)} splits: name one as {file}#{splits[0].name} "
                f"(there are {', '.join(s.name for s in splits)}), or read them all with load_splits."
            )
        return splits[0]

    def to_json(self) -> dict[str, Any]:
        """The split as plain data, in the order of the file."""
        data = {"format": FORMAT, "dataset": self.dataset, **asdict(self)}
        data["episodes"] = {str(shots): episodes for shots, episodes in self.episodes.items()}
        if self.test_dataset is None:
            del data["test_dataset"]
        order = ("format", "dataset", "test_dataset", "name", "train", "val", "test", "fid", "fid_mode")
        return {key: data[key] for key in (*order, "provenance", "episodes") if key in data}

    @classmethod
    def from_json(cls, data: Any, origin: str = "this file") -> Split:
        """The split that plain data describes; an error names `origin`."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise OodmlError(
                f'{origin} is not a split file: expected "format": "{FORMAT}", found {found!r}. '
                "`oodml splits import` makes one from the authors' official splits."
            )
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known | {"format"}:
                raise unknown_name(f"key in {origin}:", key, known)
        for key in ("train", "test"):
            if key not in data:
                raise OodmlError(f"{origin} lacks {key!r}, the list of its class names.")
        _check_types(data, origin)
        values = {key: value for key, value in data.items() if key != "format"}
        try:
            values["episodes"] = {int(shots): e for shots, e in (values.get("episodes") or {}).items()}
        except (TypeError, ValueError, AttributeError):
            raise OodmlError(f"{origin}: `episodes` must map a number of shots to a list of episodes.") from None
        return cls(**values)


class Splits(list[Split]):
    """A series of splits, and every step of the construction they were chosen from (`progression`)."""

    def __init__(self, splits: Iterable[Split] = (), progression: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(splits)
        self.progression = list(progression)

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        picked = super().__getitem__(key)
        return Splits(picked, self.progression) if isinstance(picked, list) else picked

    def to_json(self) -> dict[str, Any]:
        """The series with its progression as plain data."""
        return {"format": SERIES_FORMAT, "splits": [s.to_json() for s in self], "progression": self.progression}


def as_split(split: Any) -> Split:
    """The Split behind a path (`FILE` or `FILE#NAME`), a mapping with train and test class names, or a Split."""
    if isinstance(split, Split):
        return split
    if isinstance(split, Mapping):
        known = {key: value for key, value in split.items() if key != "format" and value is not None}
        try:
            episodes = {int(shots): each for shots, each in known.pop("episodes", {}).items()}  # text in JSON
            return Split(**known, episodes=episodes)
        except (TypeError, ValueError, AttributeError) as error:
            raise OodmlError(
                f"split: a mapping needs 'train' and 'test', and may have the other keys of a split ({error})."
            ) from None
    if isinstance(split, str | Path):
        return Split.load(split)
    raise OodmlError(
        f"split: give 'default', a path to a split file, a mapping or a Split, got {type(split).__name__}."
    )


def as_splits(splits: Sequence[Split] | str | Path) -> Splits:
    """The splits behind the path of a file, or a list of splits."""
    return load_splits(splits) if isinstance(splits, str | Path) else Splits(splits)


def save_splits(path: str | Path, splits: Sequence[Split]) -> None:
    """Write a series of splits with its progression as one JSON file; an interrupted write leaves no partial file."""
    check_names(splits, str(path))
    write_json(Path(path), (splits if isinstance(splits, Splits) else Splits(splits)).to_json())


def load_splits(path: str | Path) -> Splits:
    """Read every split of a file: a series, or a single split. `FILE#NAME` reads only the split of that name."""
    file, name = split_address(path)
    if not file.is_file():
        raise OodmlError(f"There is no split file {path}. Build one with `oodml splits build`, or check the path.")
    splits = _read_series(file)
    if not name:
        return splits
    found = [split for split in splits if split.name == name]
    if not found:
        raise unknown_name(f"split in {file}:", name, [split.name for split in splits])
    return Splits(found)


def split_address(path: str | Path) -> tuple[Path, str]:
    """The file and the name in `FILE#NAME`. The name is "" for a file alone; the path of a file may contain a #."""
    text = str(Path(path).expanduser())
    if "#" not in text or Path(text).exists():
        return Path(text), ""
    file, _, name = text.rpartition("#")
    return Path(file), name


def check_names(splits: Sequence[Split], origin: str) -> None:
    """Raise if two splits of a series have one name."""
    twice = [name for name, count in Counter(split.name for split in splits).items() if count > 1]
    if twice:
        raise OodmlError(
            f"{origin}: the splits of a series need different names; {_some(twice)} occurs more than once."
        )


def _read_series(path: Path) -> Splits:
    with explained("read", path):
        content = path.read_bytes()
    try:
        data = json.loads(content.decode("utf-8"))
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
        raise OodmlError(f"{path} is not JSON ({error}). A split file is written by `oodml splits build`.") from error
    if not isinstance(data, Mapping) or data.get("format") != SERIES_FORMAT:
        return Splits([Split.from_json(data, str(path))])
    listed = data.get("splits")
    if not isinstance(listed, list) or not listed:
        raise OodmlError(f'{path} is a series of splits without splits: its "splits" must be a list.')
    splits = Splits(
        (Split.from_json(each, f"{path}, split {i}") for i, each in enumerate(listed, 1)), data.get("progression") or ()
    )
    check_names(splits, str(path))
    return splits


def hold_out_classes(train: Sequence[str], seed: int | None = None) -> list[str]:
    """A quarter of the training classes, for validation.

    At least two, since every neighbour is right among images of one class; none of fewer than four classes, since two
    must be left to train on. Without a seed they are chosen by a hash of their names, and their number is rounded: the
    rule of a run whose split has no validation classes. With a seed they are drawn, and their number is rounded up: the
    rule of `build_splits`. Results and split files depend on both.
    """
    names = sorted(train)
    count = max(2, round(len(names) / 4) if seed is None else math.ceil(len(names) / 4))
    if len(names) - count < 2:
        return []
    if seed is None:
        order = sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
    else:
        order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    return sorted(order[:count])


def _class_names(side: str, names: Any) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise OodmlError(f"The {side} side of a split is a list of class names, got {names!r}.")
    names = list(names)
    for name in names:
        if not isinstance(name, str):
            raise OodmlError(f"The {side} side of a split lists class names (text), but holds {name!r}.")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise OodmlError(f"The {side} side of a split lists {_some(twice)} more than once.")
    return [str(name) for name in names]


def _checked_episodes(split: Split) -> dict[int, list[Episode]]:
    wanted = set(split.test)
    for shots, episodes in split.episodes.items():
        for number, episode in enumerate(episodes):
            what = f"Split {split.name!r}, episode {number} of {shots} shots"
            if not isinstance(episode, Mapping) or set(episode) != wanted:
                raise OodmlError(f"{what} must name support images of exactly the test classes.")
            for name, images in episode.items():
                if len(set(images)) != shots or len(images) != shots:
                    raise OodmlError(
                        f"{what}: class {name!r} needs exactly {shots} different images, has {len(images)}."
                    )
    return dict(sorted(split.episodes.items()))


def _check_types(data: Mapping[str, Any], origin: str) -> None:
    expected: dict[str, tuple[type, ...]] = {
        "name": (str,),
        "dataset": (str,),
        "test_dataset": (str, type(None)),
        "fid": (int, float, type(None)),
        "fid_mode": (str,),
        "provenance": (dict,),
        "episodes": (dict, type(None)),
    }
    for key, types in expected.items():
        if key in data and not isinstance(data[key], types):
            raise OodmlError(f"{origin}: {key!r} must be {types[0].__name__}, found {data[key]!r}.")


def _some(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + more
