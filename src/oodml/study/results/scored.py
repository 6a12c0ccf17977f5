"""Scores of encoders that were not trained in a study, as `scored/LABEL.json` of its folder keeps them.

They hold for the classes and the size of test set they were computed on; in a study that has others by now, not.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oodml._errors import OodmlError
from oodml.shift import Split
from oodml.study.plan import split_hash
from oodml.study.statistics import Row
from oodml.study.store import Store


def scored_file(store: Store, label: str) -> str:
    """Where an encoder's scores stand, or will: in a file named by its label, and by more where another label that
    differs in other characters only has that name."""
    name = re.sub(r"[^\w.+-]+", "-", label).strip("-.")
    if not name:
        raise OodmlError(f"The label {label!r} has no letter or digit to name a file by; choose another.")
    plain, longer = f"scored/{name}.json", f"scored/{name}-{hashlib.sha256(label.encode()).hexdigest()[:8]}.json"
    for path in (longer, plain):
        held = store.read_json(path)
        if held is not None and held["label"] == label:
            return path
    return plain if store.read(plain) is None else longer


def scored_as(store: Store, label: str) -> dict[str, Any] | None:
    """What was found for an encoder; None where none of that label was scored."""
    return store.read_json(scored_file(store, label))


def scored_labels(store: Store) -> list[str]:
    """The encoders that were scored in a study."""
    return [held["label"] for name in store.names("scored") if (held := store.read_json(f"scored/{name}"))]


def scored_on(splits: Iterable[Split], match: Sequence[int]) -> dict[str, Any]:
    """What such a file says about the splits that its scores belong to."""
    return {"match": list(match), "on": {split.name: split_hash(split) for split in splits}}


def valid_scores(
    held: Mapping[str, Any], splits: Iterable[Split], match: Sequence[int] | None
) -> dict[str, dict[str, float]]:
    """Those of the scores that were computed on these splits, at this size (None: at any)."""
    if match is not None and held.get("match") != list(match):
        return {}
    named = {hashed: name for name, hashed in held.get("on", {}).items()}  # a split may have another name by now
    return {s.name: held["splits"][named[split_hash(s)]] for s in splits if split_hash(s) in named}


def scored_rows(store: Store, splits: Sequence[Split], match: Sequence[int] | None) -> list[Row]:
    """Encoders that were scored on these splits; what was scored on others under the same names is left out."""
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
        rows += [
            Row(held["label"], split.name, split.fid or 0.0, 0, valid[split.name], kind=held["kind"])
            for split in splits
            if split.name in valid
        ]
    return rows
