"""The splits of a study: named by its settings, or built once and kept next to its runs; and their test sets."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.config import split_key
from oodml.data import Dataset, load_images
from oodml.models import extract_features
from oodml.models.backbones import weights_digest
from oodml.shift import Split, Splits, build_splits, check_names, load_official, load_splits
from oodml.study.settings import BuildSplits, OfficialSplits, StudyConfig
from oodml.study.store import Store
from oodml.training.data import choose_split

SPLITS, PROGRESSION = "splits.json", "progression.json"


def choose_splits(study: StudyConfig, dataset: Dataset, store: Store, quiet: bool = False) -> list[Split]:
    """The study's splits; whatever their origin they are written into its folder, which then needs nothing else."""
    if isinstance(study.splits, BuildSplits):
        wanted = _recipe(study.splits, dataset)
        return _stored(wanted, store) or _build(study.splits, wanted, dataset, store, quiet)
    splits = _given(study.splits, dataset)
    _check_series(splits)
    for split in splits:
        _check(split, dataset)
    _write(splits, store)
    return splits


def known_splits(study: StudyConfig, dataset: Dataset, store: Store) -> list[Split] | None:
    """The study's splits if they are given or in its folder; None where they must be built."""
    if not isinstance(study.splits, BuildSplits):
        return _given(study.splits, dataset)
    return _stored(_recipe(study.splits, None), store)


def _given(wanted: str | list[str] | OfficialSplits, dataset: Dataset) -> Splits:
    if isinstance(wanted, OfficialSplits):
        return official_splits(wanted, dataset.name)
    names = [wanted] if isinstance(wanted, str) else wanted
    return Splits(
        split
        for name in names
        for split in ([choose_split(dataset, "default")] if name == "default" else load_splits(name))
    )


def _check_series(splits: Splits) -> None:
    """Refuse splits whose results would mix in the table, or that cannot be ordered by their shift."""
    if not splits:
        raise OodmlError("`splits` is an empty list: a study needs at least one split.")
    check_names(splits, "The study")
    measured = {split.fid is not None: split.name for split in splits}
    if len(measured) == 2:
        raise OodmlError(
            f"The split {measured[False]!r} has no FID and {measured[True]!r} has one, so a study cannot order them by "
            'shift. Write the "fid" into its file (`oodml splits show` prints it), or remove one of them.'
        )


def _check(split: Split, dataset: Dataset) -> None:
    """Refuse a split that no run could use."""
    choose_split(dataset, split)
    try:
        dataset.class_ids([*split.train, *split.test, *split.val])
    except OodmlError as error:
        raise OodmlError(f"The split {split.name!r} is not one of this dataset. {error}") from error
    for side, names, least in (("train", split.train, 2), ("test", split.test, 1)):
        readable = len(np.unique(dataset.labels[dataset.indices_of(names)]))
        if readable < least:
            raise OodmlError(
                f"Of the {len(names)} {side} classes of the split {split.name!r} {readable} can be read from "
                f"{dataset.name!r}, and a run needs at least {least}. Repair their images, or remove the split."
            )


def official_splits(wanted: OfficialSplits, dataset: str) -> Splits:
    """The published splits, from a file at the given path or under $OODML_DATA."""
    given = Path(wanted.official).expanduser()
    path = given if given.exists() else Path(os.environ.get("OODML_DATA") or "data").expanduser() / given
    splits = load_official(path, dataset)
    if wanted.ids is None:
        return splits
    found = {int(split.provenance["id"]): split for split in splits}
    missing = [number for number in wanted.ids if number not in found]
    if missing:
        raise OodmlError(f"{path} has no splits {missing} of {dataset}; it has {sorted(found)}.")
    return Splits(found[number] for number in wanted.ids)


def stored_splits(store: Store) -> list[Split]:
    """The splits that a study's folder holds; none before its first run."""
    held = store.read_json(SPLITS)
    return [] if held is None else [Split.from_json(each, f"{store.url}/{SPLITS}") for each in held["splits"]]


def copy_splits(store: Store, other: Store) -> None:
    """Copy the splits of a store into another one, so that they are not built again there."""
    held = store.read(SPLITS)
    if held is not None:
        other.write(SPLITS, held)


def split_hash(split: Split) -> str:
    """A short key of a split: the full one may hold thousands of class names."""
    return hashlib.sha256(json.dumps(split_key(split), sort_keys=True).encode()).hexdigest()[:16]


def _recipe(options: BuildSplits, dataset: Dataset | None) -> dict[str, Any]:
    """What identifies splits that are built; without a dataset, all but its images."""
    recipe: dict[str, Any] = options.model_dump()
    if dataset is not None:
        recipe |= {"data": dataset.fingerprint}
    if options.weights is not None:
        recipe |= {"weights": str(Path(options.weights).expanduser().resolve())}
        recipe |= {"weights_sha256": weights_digest(options.weights)}
    return recipe


def _stored(wanted: Mapping[str, Any], store: Store) -> list[Split] | None:
    """The splits in the store if they were built by this recipe."""
    splits = stored_splits(store)
    held = splits[0].provenance.get("recipe", {}) if splits else {}
    held = BuildSplits().model_dump() | held  # an option that is younger than the splits had its default
    wanted = {**wanted, "data": wanted.get("data", held.get("data"))}
    if "weights_sha256" in wanted:
        wanted["weights"] = held["weights"]  # the same file counts as the same wherever it is
    return splits if splits and held == wanted else None


def _build(options: BuildSplits, recipe: dict[str, Any], dataset: Dataset, store: Store, quiet: bool) -> list[Split]:
    sample = dataset.sample(options.images_per_class) if options.images_per_class else dataset
    splits = build_splits(
        extract_features(sample, backbone=options.backbone, weights=options.weights, quiet=quiet),
        sample.labels,
        class_names=sample.classes,
        start=dataset.default_split,
        n_splits=options.n_splits,
        reverse=options.reverse,
        removal=options.removal,
        swaps_per_step=options.swaps_per_step,
        keep=options.keep,
        fid_mode=options.fid_mode,  # type: ignore[arg-type]
        dataset=dataset.name,
        provenance={"recipe": recipe},
    )
    _write(splits, store)
    return splits


def _write(splits: Splits, store: Store) -> None:
    # Through JSON and back: a recipe with tuples would not be equal to itself after reading.
    store.write_json(SPLITS, json.loads(json.dumps(splits.to_json())))
    write_progression(splits, store)


def write_progression(splits: Splits, store: Store) -> None:
    """Write every step of the splits' construction, counted from its start (below 0: to easier splits), and which of
    them were chosen; nothing where the steps are unknown."""
    chosen, walk = {split.fid for split in splits}, splits.progression
    start = next((i for i, s in enumerate(walk) if s.get("stage") == "start"), 0)
    steps = [{"step": i - start, "fid": s["fid"], "chosen": s["fid"] in chosen} for i, s in enumerate(walk)]
    if steps:
        store.write_json(PROGRESSION, steps)


def split_features(recipe: Mapping[str, Any], dataset: Dataset) -> tuple[np.ndarray, Dataset]:
    """Features (N, D) and the images they belong to, as the splits were built from them.

    `recipe` is in the provenance of every split that a study built. The features are in the cache on disk, unless it
    was emptied.
    """
    readable, images = load_images(dataset, quiet=True).dataset, recipe.get("images_per_class")
    if recipe.get("data", readable.fingerprint) != readable.fingerprint:
        raise OodmlError(f"the dataset {dataset.name!r} has changed since they were built.")
    sample = readable.sample(images) if images else readable
    return extract_features(sample, backbone=recipe["backbone"], weights=recipe.get("weights")), sample


def smallest_test_set(splits: Sequence[Split], dataset: Dataset) -> tuple[int, int]:
    """(classes, images per class) that every split's test set can be reduced to; classes without a readable image do
    not count."""
    sizes = np.bincount(dataset.labels, minlength=len(dataset.classes))
    size_of = {name: size for name, size in zip(dataset.classes, sizes.tolist(), strict=True) if size}
    tests = [[size_of[name] for name in split.test if name in size_of] for split in splits]
    return min(map(len, tests)), max(2, min((min(each) for each in tests if each), default=0))
