"""Scores of an encoder on the splits of a study.

What is found stands in `scored/LABEL.json` of the study's folder and enters its table, its AGS ranking and its report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.data import Dataset, load_dataset, load_images
from oodml.evaluation import evaluate
from oodml.shift import Split
from oodml.study.encoders.embeddings import Encoder, embed_pictures, find_encoder, read_embeddings
from oodml.study.plan import StudyConfig, load_plan, load_settings, saved_match, stored_splits
from oodml.study.results import scored_file, scored_on, smallest_test_set
from oodml.study.store import Store, open_store

KINDS = ("generic", "own")


def score_study(
    folder: str | Path | Store,
    label: str,
    encoder: Encoder | str | Path,
    *,
    kind: str = "own",
    normalise: bool = False,
    batch_size: int = 64,
    quiet: bool = False,
) -> dict[str, Any]:
    """Score an encoder on every split of a study and add it to the study's table.

    Args:
        folder: the study.
        label: the encoder's name in the table, that of no method; scored again under the same name, it is replaced.
        encoder: a function from a list of PIL images (upright, RGB, whole) to vectors (n, d); its address
            "module:function"; a folder with one SPLIT.npz a split; or one .npz for all pictures of the data set.
            See `read_embeddings` for what an .npz holds.
        normalise: divide each vector by its norm first; without, distances are Euclidean as given.
    """
    store = open_store(folder)
    splits, dataset = splits_and_pictures(store, quiet)
    _refuse_method(store, label)
    if isinstance(encoder, str) and ":" in encoder and not Path(encoder).exists():
        encoder = find_encoder(encoder)
    if callable(encoder):
        rows = embed_pictures(encoder, dataset, splits, batch_size, quiet)
    else:
        rows = read_embeddings(Path(encoder), dataset, splits)
    return score_splits(store, label, kind, dataset, splits, rows, normalise)


def splits_and_pictures(store: Store, quiet: bool = False) -> tuple[list[Split], Dataset]:
    """A study's splits and its data set, without pictures that cannot be read, as its runs had it."""
    splits = stored_splits(store)
    if not splits:
        raise OodmlError(f"{store.url} holds no study with splits. Run one with `oodml study run` first.")
    dataset = load_dataset(StudyConfig(**load_settings(store)).dataset)
    return splits, load_images(dataset, quiet=quiet).dataset


def score_splits(
    store: Store,
    label: str,
    kind: str,
    dataset: Dataset,
    splits: Sequence[Split],
    rows: Mapping[str, np.ndarray],
    normalise: bool = False,
    backbone: str | None = None,
) -> dict[str, Any]:
    """Score the embeddings of every split's test pictures (in the data set's order), and write the result.

    `backbone` is written into it: the full name of what a short label such as `clip` stands for.
    """
    if kind not in KINDS:
        raise OodmlError(f"An encoder that is only scored is 'generic' or 'own', got {kind!r}.")
    _refuse_method(store, label)
    match = saved_match(store) or smallest_test_set(list(splits), dataset)  # as the runs beside them
    found = {}
    for split in splits:
        labels = dataset.labels[dataset.indices_of(split.test)]
        scores = evaluate(rows[split.name], labels, match=match, normalise=normalise)
        found[split.name] = {name: float(value) for name, value in scores.items()}
    named = {"backbone": backbone} if backbone else {}
    held = {"label": label, "kind": kind, **named, **scored_on(splits, match), "splits": found}
    store.write_json(scored_file(store, label), held)
    return held


def _refuse_method(store: Store, label: str) -> None:
    """An encoder with the name of a method would stand in its row."""
    if label in {place.method for place in load_plan(store)}:
        raise OodmlError(f"{label!r} is a method that the study trains; give the encoder another label.")
