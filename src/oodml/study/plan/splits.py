"""The splits of a study: named by it, or built once and kept beside its runs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.config import split_key
from oodml.data import Dataset
from oodml.models import extract_features
from oodml.models.backbones import weights_digest
from oodml.shift import Split, Splits, build_splits, check_names, load_official, load_splits
from oodml.study.plan.settings import BuildSplits, OfficialSplits, StudyConfig
from oodml.study.store import Store
from oodml.training.data import choose_split

SPLITS, PROGRESSION = "splits.json", "progression.json"


def choose_splits(study: StudyConfig, dataset: Dataset, store: Store, quiet: bool = False) -> list[Split]:
    """The study's splits; whatever their origin they are written into its folder, which then needs nothing else."""
    if isinstance(study.splits, BuildSplits):
        return _kept(study.splits, dataset, store) or _build(study.splits, dataset, store, quiet)
    if isinstance(study.splits, OfficialSplits):
        splits = official_splits(study.splits, dataset.name)
    else:
        named = [study.splits] if isinstance(study.splits, str) else study.splits
        splits = Splits(split for name in named for split in _named(name, dataset))
    _check_series(splits)
    for split in splits:
        _check(split, dataset)
    _keep(splits, store)
    return splits


def _named(name: str, dataset: Dataset) -> Splits:
    return Splits([choose_split(dataset, "default")]) if name == "default" else load_splits(name)


def _check_series(splits: Splits) -> None:
    """Refuse splits whose results would mix in the table, or could not be put in the order of their shift."""
    if not splits:
        raise OodmlError("`splits` is an empty list: a study needs at least one split.")
    check_names(splits, "The study")
    measured = {split.fid is not None: split.name for split in splits}
    if len(measured) == 2:
        raise OodmlError(
            f"The split {measured[False]!r} does not say its FID and {measured[True]!r} does, so a study cannot put "
            'them in order of shift. Write the "fid" into its file (`oodml splits show` prints it), or leave one out.'
        )


def _check(split: Split, dataset: Dataset) -> None:
    """Refuse a split that no run could use."""
    choose_split(dataset, split)
    try:
        dataset.class_ids([*split.train, *split.test, *split.val])
    except OodmlError as error:
        raise OodmlError(f"The split {split.name!r} is not one of this data set. {error}") from error
    for side, names, least in (("train", split.train, 2), ("test", split.test, 1)):
        readable = len(np.unique(dataset.labels[dataset.indices_of(names)]))
        if readable < least:
            raise OodmlError(
                f"Of the {len(names)} {side} classes of the split {split.name!r} {readable} can be read from "
                f"{dataset.name!r}, and a run needs {least} at least. Repair their pictures, or leave the split out."
            )


def official_splits(wanted: OfficialSplits, dataset: str) -> Splits:
    """The published splits, of a file found as given or under $OODML_DATA."""
    given = Path(wanted.official).expanduser()
    path = given if given.exists() else Path(os.environ.get("OODML_DATA") or "data").expanduser() / given
    splits = load_official(path, dataset)
    if wanted.ids is None:
        return splits
    found = {int(split.provenance["id"]): split for split in splits}
    missing = [number for number in wanted.ids if number not in found]
    if missing:
        raise OodmlError(f"{path} lacks the splits {missing} of {dataset}; it has {sorted(found)}.")
    return Splits(found[number] for number in wanted.ids)


def stored_splits(store: Store) -> list[Split]:
    """The splits that a study's folder holds; none before its first run."""
    held = store.read_json(SPLITS)
    return [] if held is None else [Split.from_json(each, f"{store.url}/{SPLITS}") for each in held["splits"]]


def keep_splits_of(store: Store, other: Store) -> None:
    """Give another store the splits that this one holds, so that they are not built again there."""
    held = store.read(SPLITS)
    if held is not None:
        other.write(SPLITS, held)


def split_hash(split: Split) -> str:
    """What identifies a split, in short: its key may hold thousands of class names."""
    return hashlib.sha256(json.dumps(split_key(split), sort_keys=True).encode()).hexdigest()[:16]


def _recipe(options: BuildSplits, dataset: Dataset) -> dict[str, Any]:
    recipe = options.model_dump() | {"data": dataset.fingerprint}
    if options.weights is not None:
        recipe |= {"weights": str(Path(options.weights).expanduser().resolve())}
        recipe |= {"weights_sha256": weights_digest(options.weights)}
    return recipe


def _kept(options: BuildSplits, dataset: Dataset, store: Store) -> list[Split] | None:
    splits = stored_splits(store)
    held = splits[0].provenance.get("recipe", {}) if splits else {}
    held = BuildSplits().model_dump() | held  # an option that is younger than the splits had its default
    wanted = _recipe(options, dataset)
    if "weights_sha256" in wanted:
        wanted["weights"] = held["weights"]  # the same file counts as the same wherever it is
    return splits if held == wanted else None


def _build(options: BuildSplits, dataset: Dataset, store: Store, quiet: bool) -> list[Split]:
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
        provenance={"recipe": _recipe(options, dataset)},
    )
    _keep(splits, store)
    return splits


def _keep(splits: Splits, store: Store) -> None:
    # Through JSON and back: a recipe with tuples would not equal itself read again.
    store.write_json(SPLITS, json.loads(json.dumps(splits.to_json())))
    keep_progression(splits, store)


def keep_progression(splits: Splits, store: Store) -> None:
    """Write every step of the splits' construction, counted from its start (below 0: to easier splits), and which of
    them were chosen; nothing where none is known."""
    chosen, walk = {split.fid for split in splits}, splits.progression
    start = next((i for i, s in enumerate(walk) if s.get("stage") == "start"), 0)
    steps = [{"step": i - start, "fid": s["fid"], "chosen": s["fid"] in chosen} for i, s in enumerate(walk)]
    if steps:
        store.write_json(PROGRESSION, steps)
