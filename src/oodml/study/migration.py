"""Finished runs of version 1 in a store: which run of today each of them is, or why it is stale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml.config.identity import IDENTITY, run_hash
from oodml.config.version1 import Stale, from_version_1
from oodml.models.backbones import find_weights, weights_digest
from oodml.study.store import RESULT, Identities, Store


def identities_of(store: Store, weights: str | Path | None = None, small_images: bool = False) -> Identities:
    """The store's table of earlier runs, completed with those that are not in it yet.

    `weights` is the file that those runs started from, where it is not at the path they recorded; `small_images` says
    that no image of the dataset has a short side above 256 pixels.
    """
    known = store.identities
    renamed, stale = dict(known.renamed), dict(known.stale)
    for run_id in store.names("runs"):
        result = None if run_id in known.known else store.read_json(f"runs/{run_id}/{RESULT}")
        if result is None or result.get("identity", 1) == IDENTITY:
            continue
        if (why := staleness(result)) is not None:
            stale[run_id] = why
            continue
        digest = _digest(result["config"], weights, store)
        same = from_version_1(result["config"], small_images)
        renamed[run_id] = tuple(run_hash(each, digest) for each in same)
    return Identities(renamed, stale)


def _digest(config: Mapping[str, Any], weights: str | Path | None, store: Store) -> str | None:
    recorded = config.get("weights")
    if recorded is None:
        return None
    path = find_weights(str(config["backbone"]), weights) if weights else Path(recorded)
    if path is None or not path.is_file():
        raise OodmlError(
            f"{store.url} holds runs of an earlier version that started from {recorded}, which is not there. Run "
            f"`oodml study migrate {store.url} --weights FILE` with that file, or choose another folder."
        )
    return weights_digest(path)


def stale_runs(store: Store) -> dict[str, int]:
    """How many finished runs of version 1 no longer say what their settings compute, by the reason."""
    reasons = Counter(store.identities.stale.values())
    for run_id in store.names("runs"):
        if run_id not in store.identities.known and (why := staleness(store.read_json(f"runs/{run_id}/{RESULT}"))):
            reasons[why] += 1
    return dict(reasons)


def staleness(result: Mapping[str, Any] | None) -> str | None:
    """Why a finished run no longer says what its settings compute; None where it does."""
    if result is None or "config" not in result or result.get("identity", 1) == IDENTITY:
        return None
    try:
        for each in from_version_1(result["config"]):
            each.resolved()
    except Stale as reason:
        return str(reason)
    except OodmlError as error:  # a plug-in that is not installed here, a dataset that is not registered
        return f"its settings are not valid here ({error})"
    return None
