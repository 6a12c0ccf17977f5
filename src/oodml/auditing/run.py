"""`audit`: how well would image embeddings generalise on these images?

Features of a frozen network → splits of rising shift → a few methods as heads on the features, and the backbone as it
is, on every split → the folder of a study with table, forecast, and an answer in numbers and in sentences.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml._files import write_json
from oodml._machine import cores
from oodml.auditing.budget import (
    METHODS,
    MOST_LEVELS,
    STEPS,
    VIEWS,
    Budget,
    audit_study,
    blocks_of,
    budget_named,
    complete_blocks,
    run_blocks,
)
from oodml.auditing.forecast import by_rising_shift, place
from oodml.auditing.images import OpenedFolder, open_folder, target_features
from oodml.config import check_backbone
from oodml.data import Dataset
from oodml.models import extract_features
from oodml.models.backbones.efficientnet_lite import packaged_weights
from oodml.reporting.words import advice_sentences, expectation_sentences, target_sentences, worth_sentences
from oodml.shift import Placement, Split, Splits, reference_splits, save_splits
from oodml.study import load_study
from oodml.study.advice import Advice, Expectation, advise, expectation
from oodml.study.encoders import score_splits
from oodml.study.engines import make_engine
from oodml.study.forecast import forecast_file
from oodml.study.grid import PlannedRun, save_plan
from oodml.study.leaderboard import METRIC
from oodml.study.run import prepare, run_missing
from oodml.study.splits import smallest_test_set, write_progression
from oodml.study.store import AUDITED, Store
from oodml.study.table import EXTERNAL, UNTRAINED, StudyTable, untrained_label

SAMPLE = "sample"  # of AUDITED: how the folder was reduced when the audit was started


@dataclass(frozen=True)
class Audit:
    """What an audit found, in numbers and in sentences.

    use       the method to use, or the untrained backbone
    expected  recall@1 of `use` on unseen classes like yours ("like": the smallest shift) and unlike yours ("unlike":
              the largest one, where there is more than one)
    advice    the comparison that `use` follows from
    forecast  what forecast.json holds: the curve of `use`, and what to expect on the target
    placement where the splits and the target are on the scale of shift
    answer    the same in sentences; `notes` say what was left out
    blocks    how many blocks (all methods × all levels × one draw) the answer is made of
    """

    use: str
    expected: dict[str, Expectation]
    advice: Advice
    forecast: dict[str, Any]
    placement: Placement
    answer: list[str]
    notes: list[str]
    blocks: int
    table: StudyTable
    folder: Path
    seconds: float


def audit(
    folder: str | Path,
    target: Dataset | str | Path | None = None,
    *,
    budget: str = "small",
    minutes: float | None = None,
    out: str | Path = "audit",
    backbone: str = "tf_efficientnet_lite0",
    workers: int | None = None,
    quiet: bool = False,
) -> Audit:
    """Audit the images in `folder` (class folders); `target` are images that the embeddings will be used on later.

    Args:
        budget: "small", "medium" or "large": a fixed grid of methods, levels of shift and draws (see BUDGETS).
        minutes: start no further block of the grid that is expected to end later than this. The first block is always
            run. Default: run the whole grid.
        out: becomes the folder of a study, with audit.json and forecast.json. An audit of the same images there is
            resumed: finished runs are kept, and another budget adds what it lacks.
        workers: runs side by side; default: one per core.
    """
    began, chosen, workers = time.monotonic(), budget_named(budget), workers or cores()
    if minutes is not None and not 0 < minutes < math.inf:
        raise OodmlError(f"minutes must be a positive number, or None for no limit; got {minutes}.")
    check_backbone(backbone)
    store = Store(out)
    with _without_warnings():
        opened = _open(folder, chosen, store, quiet)
        notes = list(opened.notes)
        features = extract_features(opened.dataset, backbone, quiet=quiet)
        extract_features(opened.dataset, backbone, views=VIEWS, quiet=quiet)  # cached on disk, where the runs read them
        other = None if target is None else target_features(target, backbone, notes, quiet)
        # Written only now: an audit that is refused leaves nothing behind.
        about = {"root": opened.settings["root"], "fingerprint": opened.dataset.fingerprint, SAMPLE: opened.sample}
        store.write_json(AUDITED, about)
        splits, placed = _splits(opened, features, chosen, other, store)
        study = audit_study(chosen, opened.settings, opened.dataset, backbone, splits, store.root / "splits.json")
        planned = prepare(study, store, quiet=True, is_audit=True)
        _score_encoders(chosen, backbone, opened.dataset, features, splits, store, notes, quiet)
        engine = make_engine("local", workers=workers)
        run_blocks(planned, store, lambda runs: run_missing(runs, store, engine, quiet), minutes, began, workers)
    kept, missing = complete_blocks(planned, store)
    gallery = smallest_test_set(splits, opened.dataset)
    save_plan(kept, store, gallery)
    notes += [*_size_notes(chosen, opened, planned, splits), *missing]
    table = load_study(store)
    advice = advise(table, untrained_label(backbone))
    ends = {"like": table.splits[0], "unlike": table.splits[-1]} if len(splits) > 1 else {"like": table.splits[0]}
    by_name = {split.name: split for split in splits}
    expected = {
        key: expectation(table, advice.use, by_name[name], opened.dataset, features) for key, name in ends.items()
    }
    of_target = None if placed.target is None else ("target", placed.target.mean)
    forecast = forecast_file(table, advice.use, METRIC, gallery, target=of_target)
    write_json(store.root / "forecast.json", forecast)
    answer = [*advice_sentences(advice), *expectation_sentences(advice.use, list(expected.values()), gallery)]
    answer += worth_sentences(forecast) if of_target is None else target_sentences(placed, forecast)
    found = Audit(
        advice.use,
        expected,
        advice,
        forecast,
        placed,
        answer,
        notes,
        len(blocks_of(kept)),
        table,
        store.root,
        time.monotonic() - began,
    )
    _write(found, chosen, store)
    return found


def _write(found: Audit, budget: Budget, store: Store) -> None:
    """audit.json: the numbers and the sentences."""
    placed = found.placement
    target = None
    if placed.target is not None:
        low, high = placed.target.interval()
        target = {"images": placed.target_images, "fid": placed.target.mean, "low": low, "high": high, "draw": placed.n}
        target |= {"shared": placed.shared_targets, "expected": found.forecast["target"]}
    numbers = {
        "use": found.use,
        "expected": {key: asdict(each) for key, each in found.expected.items()},
        "advice": asdict(found.advice),
        "target": target,
        "budget": asdict(budget),
        "blocks": found.blocks,
        "seconds": found.seconds,
    }
    sentences = {"answer": found.answer, "notes": found.notes}
    store.write_json("audit.json", _without_nan(numbers | sentences))


def _without_nan(value: Any) -> Any:
    """The same data with None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _open(folder: str | Path, budget: Budget, store: Store, quiet: bool) -> OpenedFolder:
    """The images of the folder: those of an earlier audit in the store, if there is one. A store with something else,
    or with an audit of other images, is refused."""
    earlier = store.audited()
    store.check_folder("audit", [AUDITED] if earlier else [])
    opened = open_folder(folder, budget.images, earlier.get(SAMPLE) if earlier else None, quiet)
    if earlier and earlier["fingerprint"] != opened.dataset.fingerprint:
        raise OodmlError(
            f"{store.root} holds an audit of other images ({earlier['root']}, as they were then). Give --out a new "
            "folder, or remove that one."
        )
    return opened


def _splits(
    opened: OpenedFolder, features: np.ndarray, budget: Budget, target: tuple[Dataset, np.ndarray] | None, store: Store
) -> tuple[list[Split], Placement]:
    """The levels of shift of the budget, and where the target is among them.

    They are chosen from the levels of the largest budget, so that a larger budget has the splits of a smaller one.
    """
    dataset, rows = opened.dataset, opened.rows
    built = reference_splits(features[rows], dataset.labels[rows], dataset.classes, MOST_LEVELS, dataset.name)
    positions = np.unique(np.linspace(0, len(built) - 1, budget.levels).round().astype(int))
    chosen = Splits((built[i] for i in positions), built.progression)
    write_progression(chosen, store)
    splits, placed = by_rising_shift(chosen, place(dataset, features, rows, chosen, target))
    save_splits(store.root / "splits.json", splits)
    return splits, placed


def _score_encoders(
    budget: Budget,
    backbone: str,
    dataset: Dataset,
    features: np.ndarray,
    splits: list[Split],
    store: Store,
    notes: list[str],
    quiet: bool,
) -> None:
    """Score the backbone without a head, and the further encoders of the budget whose weights are installed."""

    def score(label: str, kind: str, features: np.ndarray) -> None:
        score_splits(store, label, kind, dataset, splits, features)

    score(untrained_label(backbone), UNTRAINED, features)
    for name in budget.encoders:
        if name == backbone:
            continue
        if packaged_weights(int(name[-1])) is None:
            notes.append(f"The encoder {name} was not scored: its weights are not installed.")
        else:
            score(name, EXTERNAL, extract_features(dataset, name, quiet=quiet))


def _size_notes(budget: Budget, opened: OpenedFolder, planned: list[PlannedRun], splits: list[Split]) -> list[str]:
    """What was run, and what the budget leaves out."""
    methods = list(dict.fromkeys(run.method for run in planned))
    notes = [
        f"Budget {budget.name}: {len(methods)} methods × {len(splits)} levels of shift × {budget.draws} draws, "
        f"{STEPS} steps per run, {VIEWS} augmented views; {len(opened.rows):,} images of {opened.classes} classes."
    ]
    if left_out := [name for name in METHODS if name not in methods]:
        notes.append(f"Not in this budget: {', '.join(left_out)}.")
    return notes


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """No warnings here and in the workers: every run would repeat what the notes of the audit say once."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.pop("PYTHONWARNINGS") if before is None else os.environ.update(PYTHONWARNINGS=before)
