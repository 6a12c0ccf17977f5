"""Encoders that are not trained in a study, scored on its splits: published weights, a function, stored embeddings.

The scores are in `scored/LABEL.json` of the study's folder and enter its table, its ranking and its report. They belong
to the classes and the size of test set they were computed on; in a study with other splits they are left out.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from oodml._errors import OodmlError
from oodml.data import Dataset, load_dataset, load_images
from oodml.encoders.published import backbone_name, encoder_features, encoder_specs, scored_by
from oodml.encoders.score import WHITENED, check_forms
from oodml.encoders.score import score_encoder as score_on_splits
from oodml.evaluation import MATCHED, evaluate
from oodml.models import Backbone
from oodml.shift import Split
from oodml.study.embeddings import Encoder, embed_images, find_encoder, read_embeddings
from oodml.study.grid import load_plan, load_settings, saved_match
from oodml.study.settings import StudyConfig
from oodml.study.splits import smallest_test_set, split_hash, stored_splits
from oodml.study.store import EMBEDDINGS, Store, open_store
from oodml.study.table import EXTERNAL, UNTRAINED, Row

KINDS = (EXTERNAL, UNTRAINED)
MATCHED_AT = "matched"  # of result.json: recall at one size of test set, and the size


def add_encoder(
    folder: str | Path | Store,
    encoder: Encoder | str | Path | Mapping[str, Any] | Backbone,
    label: str | None = None,
    *,
    form: str | None = None,
    components: int | None = None,
    batch_size: int = 64,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """Score an encoder without training on every split of a study and add it to the study's table.

    Args:
        folder: the study.
        encoder: a backbone as of `oodml.evaluate_pretrained` (a name, `{"name", "weights"}` or a `Backbone`); a
            function from a list of PIL images (upright, RGB, whole) to vectors (n, d), or its address
            "module:function"; a folder with one SPLIT.npz per split, or one .npz for all images of the dataset (see
            `read_embeddings`).
        label: the name in the table; not that of a method. Scored again under the same label, it is replaced. The
            default for a backbone is its own name, followed by the form unless that is "normalised".
        form, components: as of `oodml.evaluate_pretrained`. The default is "normalised" for backbones, else "raw".
    """
    store = open_store(folder)
    source = _embedding_source(encoder)
    form = form or ("normalised" if source is None else "raw")
    check_forms([form], components)
    if source is not None and form == WHITENED:
        raise OodmlError("Whitening needs the embeddings of the train classes too: give the form normalised or raw.")
    if source is not None and label is None:
        raise OodmlError("An encoder of your own needs a label, its name in the table (--name).")
    specs = encoder_specs([encoder]) if source is None else []  # type: ignore[list-item]
    splits, dataset = splits_and_images(store, quiet)
    if label is not None:
        _check_label(store, label)
    if source is not None:
        return score_splits(
            store, str(label), EXTERNAL, dataset, splits, source(dataset, splits, batch_size, quiet), form
        )
    (spec,) = specs
    name, features = encoder_features(dataset, device=device, quiet=quiet, **spec)
    label = label or (name if form == "normalised" else f"{name} ({form})")
    backbone = backbone_name(spec["name"])
    return score_splits(store, label, EXTERNAL, dataset, splits, features, form, components, backbone)


def _embedding_source(encoder: Any) -> Callable[..., dict[str, np.ndarray]] | None:
    """What gives the embeddings of all splits, from (dataset, splits, batch_size, quiet); None for a backbone."""
    if isinstance(encoder, str) and ":" in encoder and not Path(encoder).exists():
        encoder = find_encoder(encoder)
    if isinstance(encoder, Backbone | Mapping):
        return None
    if callable(encoder):
        return lambda *given: embed_images(encoder, *given)
    path = Path(encoder)
    if isinstance(encoder, Path) or path.suffix == ".npz" or path.is_dir():
        return lambda dataset, splits, *_: read_embeddings(path, dataset, splits)
    return None


def splits_and_images(store: Store, quiet: bool = False) -> tuple[list[Split], Dataset]:
    """A study's splits and its dataset without unreadable images, as its runs had it."""
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
    vectors: np.ndarray | Mapping[str, np.ndarray],
    form: str = "normalised",
    components: int | None = None,
    backbone: str | None = None,
) -> dict[str, Any]:
    """Score an encoder on the splits by its vectors of all images, or by those of every split's test images, and write
    the result.

    `backbone` is written into it: the full name of what a short label such as `clip` means.
    """
    if kind not in KINDS:
        raise OodmlError(f"An encoder that is not trained is of the kind {' or '.join(KINDS)}, got {kind!r}.")
    _check_label(store, label)
    match = saved_match(store) or smallest_test_set(splits, dataset)  # that of the runs
    found: dict[str, dict[str, float]] = {}
    for split in splits:
        at = (lambda _, name=split.name: vectors[name]) if isinstance(vectors, Mapping) else vectors.__getitem__
        options: dict[str, Any] = {"label": label, "kind": kind, "forms": [form], "components": components}
        (row,) = score_on_splits(at, dataset, [split], match=match, **options)
        found[split.name] = row.scores
    named = {"backbone": backbone} if backbone else {}
    held = {"label": label, "kind": kind, **named, **scored_on(splits, match), "splits": found}
    store.write_json(scored_file(store, label), held)
    return held


def matched_recall(run: Path, match: Sequence[int]) -> float:
    """Recall@1 of a run with every split's test set reduced to the same size, from its stored test embeddings.

    Building splits by removal shrinks the gallery and hides the shift; at one size the splits can be compared.
    """
    stored = load_file(run / EMBEDDINGS)
    size = (match[0], match[1])
    return evaluate(stored["embeddings"].astype(np.float32), stored["labels"], metrics=[MATCHED], match=size)[MATCHED]


def _check_label(store: Store, label: str) -> None:
    """Refuse an encoder with the name of a method: both would share a row."""
    if label in {entry.method for entry in load_plan(store)}:
        raise OodmlError(f"{label!r} is a method that the study trains; give the encoder another label.")


# -- what is stored ---------------------------------------------------------------------------------------------------


def scored_file(store: Store, label: str) -> str:
    """The file of an encoder's scores: named by its label, with a hash where another label has the same file name."""
    name = re.sub(r"[^\w.+-]+", "-", label).strip("-.")
    if not name:
        raise OodmlError(f"The label {label!r} has no letter or digit to name a file by; choose another.")
    plain, longer = f"scored/{name}.json", f"scored/{name}-{hashlib.sha256(label.encode()).hexdigest()[:8]}.json"
    for path in (longer, plain):
        held = store.read_json(path)
        if held is not None and held["label"] == label:
            return path
    return plain if store.read(plain) is None else longer


def scored_labels(store: Store) -> list[str]:
    """The encoders that were scored in a study."""
    return [held["label"] for name in store.names("scored") if (held := store.read_json(f"scored/{name}"))]


def scored_on(splits: Iterable[Split], match: Sequence[int]) -> dict[str, Any]:
    """The splits and the size of test set that scores belong to, as they are stored."""
    return {"match": list(match), "on": {split.name: split_hash(split) for split in splits}}


def missing_encoders(
    names: Iterable[str], store: Store, splits: Sequence[Split], match: Sequence[int] | None
) -> list[str]:
    """The backbones without scores on all of the splits at this size of test set."""
    held = {name: store.read_json(scored_file(store, name)) for name in names}
    return [
        name
        for name, found in held.items()
        if found is None or not scored_by(name, found) or len(valid_scores(found, splits, match)) < len(splits)
    ]


def valid_scores(
    held: Mapping[str, Any], splits: Iterable[Split], match: Sequence[int] | None
) -> dict[str, dict[str, float]]:
    """The scores that were computed on these splits, at this size (None: at any)."""
    if match is not None and held.get("match") != list(match):
        return {}
    named = {hashed: name for name, hashed in held.get("on", {}).items()}  # a split may have another name by now
    return {s.name: held["splits"][named[split_hash(s)]] for s in splits if split_hash(s) in named}


def scored_rows(
    store: Store, splits: Sequence[Split], match: Sequence[int] | None, untrained: Collection[str] = ()
) -> list[Row]:
    """Rows of the encoders that were scored on these splits; scores on others under the same names are left out.

    `untrained` are the labels of the backbones before training, for files that are older than the kinds of rows.
    """
    rows = []
    for name in store.names("scored"):
        held: dict[str, Any] = store.read_json(f"scored/{name}")  # type: ignore[assignment]
        valid = valid_scores(held, splits, match)
        if len(valid) < len(splits):
            warnings.warn(
                f"{store.url}/scored/{name}: the study has other splits than {held['label']!r} was scored on, and "
                "those scores are left out. Run the study again, or score the encoder again with `oodml study score`.",
                stacklevel=3,
            )
        kind = UNTRAINED if held["kind"] == UNTRAINED or held["label"] in untrained else EXTERNAL
        rows += [
            Row(held["label"], split.name, split.fid, 0, valid[split.name], kind=kind)
            for split in splits
            if split.name in valid
        ]
    return rows
