"""Few-shot episodes: a few labelled images of every test class to adapt to; the other images are tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._split import Episode, Split, as_split


class LabelledImages(Protocol):
    """The part of a dataset that episodes read."""

    @property
    def labels(self) -> np.ndarray: ...
    @property
    def classes(self) -> Sequence[str]: ...
    def path(self, i: int) -> str: ...


def make_episodes(
    split: Split | str | Path, ds: LabelledImages, *, shots: int = 5, episodes: int = 10, seed: int = 0
) -> Split:
    """A copy of `split` with `episodes` few-shot episodes. Paper: ooDML, section 4.5.

    Every episode names exactly `shots` support images of each test class, drawn without replacement; its query set is
    every other image of the test classes. Images are named by their path in the dataset, so that the file is valid
    on another machine. Episodes with other numbers of shots are kept.

    Args:
        split: a `Split`, `ds.default_split`, or the path of a split file (`FILE` or `FILE#NAME`).
        ds: the dataset that the split belongs to.
    """
    split = as_split(split)
    if shots < 1 or episodes < 1:
        raise OodmlError(f"shots and episodes must be at least 1, got shots={shots}, episodes={episodes}.")
    images = _images_of_test_classes(split, ds)
    small = [name for name, names in images.items() if len(names) <= shots]
    if small:
        raise OodmlError(
            f"{shots} shots need at least {shots + 1} images of every test class, one of them to test; "
            f"too few in {_counted(small, images)}. Take fewer shots, or leave these classes out of the split."
        )
    made: list[Episode] = []
    for number in range(episodes):
        rng = np.random.default_rng([seed, shots, number])
        chosen = {name: rng.permutation(len(names))[:shots] for name, names in images.items()}
        made.append({name: sorted(images[name][i] for i in picks) for name, picks in chosen.items()})
    return replace(split, episodes={**split.episodes, shots: made})


def episode_indices(
    split: Split | str | Path, ds: LabelledImages, shots: int, episode: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the support and of the query images of an episode in the dataset, ascending."""
    split = as_split(split)
    if shots not in split.episodes:
        have = ", ".join(str(s) for s in split.episodes) or "none"
        raise OodmlError(
            f"Split {split.name!r} has no episodes of {shots} shots (it has: {have}). "
            "Make them with make_episodes, or `oodml splits episodes`."
        )
    listed = split.episodes[shots]
    if not 0 <= episode < len(listed):
        raise OodmlError(
            f"Split {split.name!r} has {len(listed)} episodes of {shots} shots, 0 to {len(listed) - 1}; got {episode}."
        )
    wanted = {name for names in listed[episode].values() for name in names}
    candidates = np.flatnonzero(np.isin(ds.labels, _class_positions(split, ds)))
    is_support = np.array([ds.path(int(i)) in wanted for i in candidates], dtype=bool)
    if is_support.sum() != len(wanted):
        lost = sorted(wanted - {ds.path(int(i)) for i in candidates[is_support]})
        raise OodmlError(
            f"{len(lost)} support images of split {split.name!r} are not in the dataset, for instance {lost[0]!r}. "
            "Use the copy of the data that the split was made from, or make new episodes."
        )
    return candidates[is_support], candidates[~is_support]


def _images_of_test_classes(split: Split, ds: LabelledImages) -> dict[str, list[str]]:
    """Names of the images of every test class, sorted."""
    labels = np.asarray(ds.labels)
    return {
        name: sorted(ds.path(int(i)) for i in np.flatnonzero(labels == position))
        for name, position in zip(split.test, _class_positions(split, ds), strict=True)
    }


@dataclass(frozen=True)
class Resolved:
    """A split with the published episodes whose images exist, and how many names and episodes were found."""

    split: Split
    found: int
    asked: int
    complete: int  # episodes of which every image was found: those in `split`
    offered: int


def resolve_episodes(split: Split, ds: LabelledImages, published: Mapping[int, Sequence[Episode]]) -> Resolved:
    """Add published episodes whose file names exist in this copy of the data.

    A name matches an image of the same class with the same file name, in any folder and with any ending (copies are
    often re-encoded). Only complete episodes are kept: half an episode is another protocol.
    """
    here = {
        name: {PurePosixPath(path).stem: path for path in paths}
        for name, paths in _images_of_test_classes(split, ds).items()
    }
    kept: dict[int, list[Episode]] = {}
    asked = found = 0
    for shots, listed in published.items():
        for episode in listed:
            paths = {c: [here.get(c, {}).get(PurePosixPath(n).stem) for n in names] for c, names in episode.items()}
            asked += sum(len(names) for names in paths.values())
            found += sum(path is not None for names in paths.values() for path in names)
            whole = {c: [path for path in names if path is not None] for c, names in paths.items()}
            if set(whole) == set(split.test) and all(len(names) == shots for names in whole.values()):
                kept.setdefault(shots, []).append(whole)
    complete = sum(len(listed) for listed in kept.values())
    offered = sum(len(listed) for listed in published.values())
    return Resolved(replace(split, episodes={**split.episodes, **kept}), found, asked, complete, offered)


def _class_positions(split: Split, ds: LabelledImages) -> np.ndarray:
    position = {name: i for i, name in enumerate(ds.classes)}
    for name in split.test:
        if name not in position:
            raise unknown_name(f"test class of split {split.name!r}:", name, ds.classes)
    return np.array([position[name] for name in split.test], dtype=np.int64)


def _counted(names: Sequence[str], images: Mapping[str, Sequence[str]], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(f"{name!r} ({len(images[name])})" for name in names[:shown]) + more
