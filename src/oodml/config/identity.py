"""What identifies a run: every setting that changes its result, in a form that no path or spelling changes.

Identity holds the settings with all defaults and recipe numbers written out, the split by its class names, weights by
the digest of their content, and the revision of every part whose revision is above 1. A part's revision is raised
whenever the same settings compute something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodml._errors import OodmlError
from oodml.config.reading import dataset_identity, split_key

if TYPE_CHECKING:
    from oodml._registry import Record
    from oodml.config.run import RunConfig

IDENTITY = 2  # of results; 1: weights by their path, numbers that a method filled in left out, no revisions

# Where and how a run happens, not what it computes.
NOT_HASHED = (
    *("out", "device", "workers", "quiet", "logger", "checkpoint_every", "log_every", "compile", "grad_cache"),
    "protocol",  # its values are written out
)


def run_hash(config: RunConfig, weights: str | None = None) -> str:
    """The hash that names a run. `weights` is the digest of its weights; None: computed from its file."""
    return hashlib.sha256(json.dumps(run_identity(config, weights), sort_keys=True).encode()).hexdigest()[:16]


def run_identity(config: RunConfig, weights: str | None = None) -> dict[str, Any]:
    resolved = config.resolved()
    values = resolved.as_dict()
    values["split"] = split_key(config.split)
    dataset = dataset_identity(config.dataset)
    values["dataset"] = dataset if len(dataset) > 1 else config.dataset_name
    values["method"] = _teachers_by_run(values["method"])
    values["weights"] = weights or starting_weights(resolved)
    values["revisions"] = {part: number for part, number in _revisions(resolved) if number != 1} or None
    # Settings left open are dropped, so that a setting added later does not rename the runs of today.
    return {name: value for name, value in values.items() if value is not None and name not in NOT_HASHED}


def _teachers_by_run(spec: Any) -> Any:
    """A method whose teacher is named by the ID of its run, wherever its folder is."""
    if not isinstance(spec, Mapping):
        return spec
    found = {key: _teachers_by_run(value) for key, value in spec.items()}
    if isinstance(found.get("teacher"), str):
        with suppress(OSError, ValueError, KeyError):  # training refuses a folder without a finished run
            result = json.loads((Path(found["teacher"]) / "result.json").read_text(encoding="utf-8"))
            found["teacher"] = {"run": result["config_hash"]}
    return found


def starting_weights(config: RunConfig) -> str | None:
    """The digest of the file that the run's backbone starts from; None where no file was given or found."""
    from oodml.models.backbones import weights_in_use

    return weights_in_use(config.backbone or "", config.weights) if config.pretrained or config.weights else None


def _revisions(config: RunConfig) -> Iterator[tuple[str, int]]:
    from oodml.data import batch_sampler_record

    yield from _parts("method", config.method)
    sampler = config.sampler if isinstance(config.sampler, str) else (config.sampler or {}).get("name")
    if sampler is not None:
        yield f"sampler {sampler}", batch_sampler_record(sampler).revision


def _parts(kind: str, spec: Any) -> Iterator[tuple[str, int]]:
    """The revision of a method, loss or miner and of everything it is made from."""
    given = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping):
        return
    record = _record(kind, given.get("name"))
    if record is None and kind == "method":
        kind, record = "loss", _record("loss", given.get("name"))
    if record is None:
        return
    yield f"{kind} {record.name}", record.revision
    if record.default_miner and given.get("miner") is None:
        yield from _parts("miner", record.default_miner)
    for key in ("loss", "base", "miner"):
        yield from _parts("miner" if "miner" in (key, kind) else "method", given.get(key))


def _record(kind: str, name: Any) -> Record | None:
    from oodml.losses import loss_record
    from oodml.methods import method_record
    from oodml.miners import miner_record

    try:
        return {"method": method_record, "loss": loss_record, "miner": miner_record}[kind](name)
    except OodmlError:  # not a name of this kind
        return None
