"""`audit`: how well would image embeddings generalise on these pictures? Answered in the minutes given.

Features of a frozen EfficientNet-Lite0 → splits of rising shift → a handful of methods as heads on the features, and
the backbone as it is, on every split → a study's folder with table, forecast and an answer in words.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from oodml._errors import OodmlError
from oodml._files import write_json
from oodml._machine import cores
from oodml.config import check_backbone
from oodml.data import Dataset
from oodml.evaluation import evaluate
from oodml.shift import Placement, Split, Splits, reference_splits, save_splits
from oodml.study.audit.baselines import score_baselines
from oodml.study.audit.pictures import Opened, Pictures, describe, open_folder, read_target
from oodml.study.audit.runs import (
    complete_runs,
    measure_costs,
    not_run,
    run_until,
    side_by_side,
    study_of,
    without_warnings,
)
from oodml.study.audit.sizing import LADDER, METHODS, Clock, Size, Sized, choose_size
from oodml.study.audit.target import by_rising_shift, place
from oodml.study.audit.words import Expectation, expectations, runner_up, target_words, verdict
from oodml.study.forecast import forecast_file
from oodml.study.grid import PlannedRun, save_plan
from oodml.study.leaderboard import METRIC, ranking
from oodml.study.load import load_study
from oodml.study.run import prepare
from oodml.study.splits import smallest_test_set, write_progression
from oodml.study.store import AUDITED, Store
from oodml.study.table import TRAINED, StudyTable, untrained_label

LEAST_MINUTES = 0.5
SIZED = "sized.json"
SAMPLE = "sample"  # of AUDITED: how the folder was reduced, whatever the minutes are now


@dataclass(frozen=True)
class Audit:
    """What an audit found. `use` is the method to use (or the untrained backbone); `answer` says so and what to expect;
    `notes` say what was left out."""

    use: str
    answer: list[str]
    notes: list[str]
    table: StudyTable
    folder: Path
    seconds: float


def audit(
    folder: str | Path,
    target: Dataset | None = None,
    minutes: float = 10.0,
    out: str | Path = "audit",
    quiet: bool = False,
    backbone: str = "tf_efficientnet_lite0",
    workers: int | None = None,
    began: float | None = None,
) -> Audit:
    """Audit the pictures in `folder` (class folders) within `minutes`; `target` are pictures to be used on later.

    The time holds for the whole, as far as it is in our hands: work is sized by what it was measured to cost here, and
    training stops when its time is up. It began now, or at `began` on the clock of `time.monotonic`. `workers` train
    side by side (default: one a core).

    `out` becomes a study's folder: splits, runs, scored encoders, forecast.json, and audit.json with the answer. An
    earlier audit of the same pictures there is continued, on the sample it was begun with; of others it is refused.
    """
    if not LEAST_MINUTES <= minutes < math.inf:
        raise OodmlError(
            f"An audit needs at least {LEAST_MINUTES} minutes, and not endlessly many; got {minutes}. Ten are a good "
            "measure."
        )
    check_backbone(backbone)
    clock, store, workers = Clock(minutes, began), Store(out), workers or cores()
    with without_warnings():
        held = _held(store)
        opened = open_folder(folder, clock, quiet, held.get(SAMPLE))
        _refuse_another(held, store, opened)
        earlier, notes = _earlier(store, clock, backbone), list(opened.notes)
        pictures = describe(opened, backbone, clock, quiet, earlier.views if earlier else None)
        other = read_target(target, backbone, notes, quiet) if target is not None else None
        _claim(store, opened)
        size = _go_on(earlier, clock) if earlier else _choose_size(pictures, store, clock, workers)
        splits, placed = _splits(pictures, size, other, store)
        planned = _plan(pictures, splits, size, store, notes)
        notes += score_baselines(pictures, splits, store, clock, quiet)
        run_until(planned, store, clock, workers, quiet)
    kept = complete_runs(planned, store)
    save_plan(kept, store, smallest_test_set(splits, pictures.dataset))
    notes += not_run(planned, kept, store)
    table = load_study(store)
    use, answer = _answer(table, pictures, splits, placed if target is not None else None, store)
    write_json(store.root / "audit.json", {"use": use, "answer": answer, "notes": notes, "seconds": clock.spent})
    return Audit(use, answer, notes, table, store.root, clock.spent)


def _held(store: Store) -> dict[str, Any]:
    """Which pictures an earlier audit in this folder is about; empty where there is none. Something else is refused."""
    held = store.audited()
    store.check_folder("audit", [AUDITED] if held else [])
    return held or {}


def _refuse_another(held: dict[str, Any], store: Store, opened: Opened) -> None:
    """Refuse a folder that holds an audit of other pictures."""
    if held and held["fingerprint"] != opened.dataset.fingerprint:
        raise OodmlError(
            f"{store.root} holds an audit of other pictures ({held['root']}, as they were then). Give --out a new "
            "folder, or remove that one."
        )


def _claim(store: Store, opened: Opened) -> None:
    """Take the folder; not before pictures and target could be read, so that what is refused leaves nothing there."""
    about = {"root": opened.spec["root"], "fingerprint": opened.dataset.fingerprint, SAMPLE: opened.sample}
    store.write_json(AUDITED, about)


def _earlier(store: Store, clock: Clock, backbone: str) -> Sized | None:
    """What an audit in this folder chose for the same time."""
    kept = store.read_json(SIZED)
    sized = None if kept is None else Sized.of(kept)
    return sized if sized and (sized.seconds, sized.backbone) == (clock.total, backbone) else None


def _go_on(earlier: Sized, clock: Clock) -> Size:
    clock.learn(earlier.fixed)
    return earlier.size


def _choose_size(pictures: Pictures, store: Store, clock: Clock, workers: int) -> Size:
    """The size that fits the time left, by what runs are measured to cost here; kept for an audit that goes on."""
    splits, file = _build(pictures, LADDER[0].splits), store.root / "splits.json"
    save_splits(file, splits)
    costs = measure_costs(study_of(pictures, splits, file, LADDER[0]), splits[0], pictures, clock, workers)
    fixed = float(np.median([cost.fixed for cost in costs]))
    clock.learn(fixed)
    size = choose_size(clock.left, side_by_side(clock, workers), costs, len(splits))
    sized = Sized(clock.total, pictures.backbone, pictures.views, size, fixed)
    store.write_json(SIZED, asdict(sized))
    return size


def _splits(
    pictures: Pictures, size: Size, target: tuple[Dataset, np.ndarray] | None, store: Store
) -> tuple[list[Split], Placement]:
    """The splits of an audit of this size, and where the target stands among them."""
    built = _build(pictures, size.splits)
    write_progression(built, store)
    splits, placed = by_rising_shift(built, place(pictures, built, target))
    save_splits(store.root / "splits.json", splits)
    return splits, placed


def _plan(pictures: Pictures, splits: list[Split], size: Size, store: Store, notes: list[str]) -> list[PlannedRun]:
    """The runs of an audit of this size."""
    notes.append(
        f"Sized to the time, in numbers: methods {size.methods}, splits {len(splits)}, steps a run {size.steps}, "
        f"augmented views {pictures.views}, pictures {len(pictures.rows)}, classes {pictures.classes}."
    )
    if missed := list(METHODS)[size.methods :]:
        notes.append(f"Not tried in the time given: {', '.join(missed)}.")
    study = study_of(pictures, splits, store.root / "splits.json", size)
    return prepare(study, store, quiet=True, is_audit=True)


def _build(pictures: Pictures, count: int) -> Splits:
    """Splits of rising shift from the classes with enough pictures."""
    rows, dataset = pictures.rows, pictures.dataset
    return reference_splits(pictures.features[rows], dataset.labels[rows], dataset.classes, count, dataset.name)


def _answer(
    table: StudyTable, pictures: Pictures, splits: list[Split], placed: Placement | None, store: Store
) -> tuple[str, list[str]]:
    """(what to use, the answer in sentences); writes forecast.json."""
    best = next((name for name in ranking(table, METRIC) if table.kinds[name] == TRAINED), None)
    use, told = verdict(table, best, untrained_label(pictures.backbone))
    answer = [told]
    if best is not None and (second := runner_up(table)):
        answer.append(second)
    by_name = {split.name: split for split in splits}
    ends = [by_name[name] for name in dict.fromkeys((table.splits[0], table.splits[-1]))]
    like, *unlike = [_expect(table, pictures, use, split) for split in ends]
    gallery = smallest_test_set(splits, pictures.dataset)
    answer += expectations(use, like, unlike[0] if unlike else None, gallery)
    target = ("target", placed.target.mean) if placed is not None and placed.target is not None else None
    held = forecast_file(table, use, METRIC, gallery, target=target)
    write_json(store.root / "forecast.json", held)
    if placed is not None:
        answer += target_words(placed, held, gallery)
    elif held["leave_one_out_error"] is not None:
        answer.append(
            f"With {use}, a split left out is predicted to {100 * held['leave_one_out_error']:.1f} points: what a "
            "forecast for pictures of your own (--target) would be worth."
        )
    return use, answer


def _expect(table: StudyTable, pictures: Pictures, use: str, split: Split) -> Expectation:
    """Recall on a split's test classes; the interval over classes is that of the first seed, around the mean."""
    rows = pictures.dataset.indices_of(split.test)
    run = next(row for row in table.rows if (row.method, row.split) == (use, split.name))
    if run.path is None:
        embeddings, labels = pictures.features[rows], pictures.dataset.labels[rows]
    else:
        stored = load_file(run.path / "embeddings.safetensors")
        embeddings, labels = stored["embeddings"].astype(np.float32), stored["labels"]
    scores = evaluate(embeddings, labels, ["recall@1"], normalise=run.path is None)
    low, high = scores.interval("recall@1")
    recall = table.means("recall@1")[table.methods.index(use), table.splits.index(split.name)]
    matched = table.means(METRIC)[table.methods.index(use), table.splits.index(split.name)]
    shift = recall - scores["recall@1"]
    return Expectation(
        split=split.name,
        fid=float(split.fid or 0),  # splits of an audit are always measured
        train_classes=len(split.train),
        test_classes=len(split.test),
        recall=float(recall),
        low=float(max(0.0, low + shift)),
        high=float(min(1.0, high + shift)),
        matched=float(matched),
    )
