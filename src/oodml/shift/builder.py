"""`build_splits`: from features and labels to a series of splits with rising shift."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import oodml
from oodml._errors import OodmlError, unknown_name
from oodml._machine import one_thread_if
from oodml._progress import console
from oodml._split import FID_MODES, Split, Splits, as_split, hold_out_classes
from oodml.shift._features import ClassFeatures, group_by_class
from oodml.shift._partition import Partition
from oodml.shift.construction import State, progression


def build_splits(
    features: Any,
    labels: Any,
    *,
    class_names: Sequence[str] | None = None,
    start: Literal["half", "random"] | Split | str | Path = "half",
    swaps_per_step: int | None = None,
    reverse: bool = False,
    removal: bool = True,
    keep: float = 0.5,
    n_splits: int = 8,
    fid_mode: Literal["class-means", "images"] = "class-means",
    patience: int = 5,
    seed: int = 0,
    dataset: str = "",
    provenance: dict[str, Any] | None = None,
    quiet: bool = True,
) -> Splits:
    """Build train-test splits of rising distribution shift (ooDML, section 3.3).

    Args:
        features: (N, D) features of one backbone, not normalised.
        labels: (N,) positions in `class_names` (without `class_names`: any labels, whose text becomes the name).
        start: "half" (first half of the sorted classes trains), "random" (`seed`), or a split to start from, as a
            `Split` or the path of its file; classes that it leaves out take no part, nor do classes without images.
        swaps_per_step: classes exchanged per step and side. None: 2 at 200 classes and 1,000 at SOP's 22,634 as in
            the paper, 2 · (K / 200)^1.314 for other numbers, at least 1.
        reverse: also build splits easier than the start.
        removal: after swapping, drop the classes nearest to the other side while `keep` of the images remain.
        n_splits: how many to choose; they cover the range of distances evenly and always include the start.
        fid_mode: distance over "class-means" (the published numbers) or over "images" (the definition).
        patience: steps without progress after which swapping stops.
        seed: of the validation classes (a quarter of the training classes) and of `start="random"`.
        dataset, provenance: written into the splits.

    Returns:
        A list of `Split` whose distances rise strictly, named shift-1, shift-2, …; its `progression` lists every step
        of the construction. It is shorter than `n_splits`, with a warning, when fewer levels can be reached.
        Deterministic, and independent of the order of the rows.
    """
    _check_options(n_splits, keep, swaps_per_step, fid_mode, patience, seed)
    classes = group_by_class(features, labels, class_names)
    start_name, train, test = _starting_sides(classes, start, seed, () if class_names is None else class_names)
    taking_part = len(train) + len(test)
    per_step = swaps_per_step or default_swaps(taking_part)
    partition = Partition(classes, fid_mode)
    with one_thread_if(partition.narrow):
        steps = progression(
            partition,
            train,
            test,
            per_step=per_step,
            reverse=reverse,
            removal=removal,
            keep=keep,
            patience=patience,
            report=(lambda state: None) if quiet else _print_step,
        )
    chosen = _choose(steps, n_splits)
    if len(chosen) < n_splits:
        warnings.warn(
            f"Only {len(chosen)} of {n_splits} splits: no more levels of shift can be reached from this start with "
            f"{taking_part} classes. More classes, reverse=True or swaps_per_step=1 may give more.",
            stacklevel=2,
        )
    shared = {
        "made_by": f"oodml.build_splits {oodml.__version__}",
        "start": start_name,
        "swaps_per_step": per_step,
        "keep": keep,
        "seed": seed,
        **(provenance or {}),
    }
    splits = [
        _as_split(classes, state, name=f"shift-{number}", dataset=dataset, fid_mode=fid_mode, provenance=shared)
        for number, state in enumerate(chosen, 1)
    ]
    return Splits((with_validation(split, seed) for split in splits), [_facts(classes, state) for state in steps])


def with_validation(split: Split, seed: int = 0) -> Split:
    """The split with a quarter of its training classes held out for validation, drawn with `seed`."""
    return replace(split, val=hold_out_classes(split.train, seed))


def default_swaps(classes: int) -> int:
    """Classes exchanged per step and side: a power law through the paper's values, 2 of 200 and 1,000 of 22,634."""
    exponent = np.log(1000 / 2) / np.log(22_634 / 200)
    return max(1, round(2 * (classes / 200) ** exponent))


def increasing(states: Sequence[State]) -> list[State]:
    """The states harder than all others since the start, or easier than all before it: distances rise strictly.

    Greedy swapping does not rise at every step; a step back uses up classes without being harder.
    """
    at = next(i for i, state in enumerate(states) if state.stage == "start")
    easier: list[State] = []
    for state in reversed(states[:at]):
        if state.fid < (easier[-1] if easier else states[at]).fid:
            easier.append(state)
    harder = [states[at]]
    for state in states[at + 1 :]:
        if state.fid > harder[-1].fid:
            harder.append(state)
    return [*reversed(easier), *harder]


def evenly(values: Sequence[float], count: int, must: int) -> list[int]:
    """Positions of `count` of the rising `values`, spaced as evenly as possible, including the first, last and `must`.

    Minimises Σ gap², which equal gaps would minimise, exactly, by dynamic programming. With fewer values than
    `count` all are taken; when `count` is too small for all three, `must` stays, then the last.
    """
    size = len(values)
    if count >= size:
        return list(range(size))
    fixed = list(dict.fromkeys([must, size - 1, 0]))[:count]
    low, high = min(fixed), max(fixed)
    picked = np.asarray(values[low : high + 1], dtype=np.float64)
    gaps = np.square(picked[None, :] - picked[:, None])
    gaps[np.tril_indices(len(picked))] = np.inf  # only upwards
    inner = must - low
    gaps[:inner, inner + 1 :] = np.inf  # no step over `must`
    best = np.full(len(picked), np.inf)
    best[0] = 0.0
    came_from = []
    for _ in range(min(count, len(picked)) - 1):
        total = best[:, None] + gaps
        came_from.append(total.argmin(axis=0))
        best = total.min(axis=0)
    path = [len(picked) - 1]
    for previous in reversed(came_from):
        path.append(int(previous[path[-1]]))
    return [low + i for i in reversed(path)]


def _choose(steps: list[State], count: int) -> list[State]:
    candidates = increasing(steps)
    first = next(i for i, state in enumerate(candidates) if state.stage == "start")
    return [candidates[i] for i in evenly([state.fid for state in candidates], count, first)]


def _as_split(classes: ClassFeatures, state: State, *, provenance: dict[str, Any], **others: Any) -> Split:
    train, test = ([classes.names[c] for c in side] for side in (state.train, state.test))
    return Split(train, test, fid=state.fid, provenance={**provenance, **_facts(classes, state)}, **others)


def _facts(classes: ClassFeatures, state: State) -> dict[str, Any]:
    return {
        "stage": state.stage,
        "step": state.step,
        "moved": state.moved,
        "fid": state.fid,
        "approximate_fid": state.approximate,
        "classes": [len(state.train), len(state.test)],
        "images": [int(classes.sizes[side].sum()) for side in (state.train, state.test)],
    }


def _starting_sides(
    classes: ClassFeatures, start: str | Path | Split, seed: int, class_names: Sequence[str]
) -> tuple[str, np.ndarray, np.ndarray]:
    """The name of the start, and the class numbers of its training and test sides."""
    count = len(classes.names)
    if start in ("half", "random"):
        name = str(start)
        order = np.arange(count) if start == "half" else np.random.default_rng(seed).permutation(count)
        train, test = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    else:
        split = as_split(start)
        name, empty = split.name, set(map(str, class_names)).difference(classes.names)
        train, test = (
            classes.positions([each for each in side if each not in empty], f"the {which} side of start")
            for side, which in ((split.train, "training"), (split.test, "test"))
        )
    if len(train) < 2 or len(test) < 2:
        raise OodmlError(
            f"Splits need at least four classes, two per side, to exchange any; the start has {len(train)} training "
            f"and {len(test)} test classes."
        )
    return name, train, test


def _check_options(
    n_splits: int, keep: float, swaps_per_step: int | None, fid_mode: str, patience: int, seed: int
) -> None:
    if n_splits < 1:
        raise OodmlError(f"n_splits must be at least 1, got {n_splits}.")
    if not 0 < keep <= 1:
        raise OodmlError(f"keep is the share of images that must remain, above 0 and at most 1; got {keep}.")
    if swaps_per_step is not None and swaps_per_step < 1:
        raise OodmlError(f"swaps_per_step must be at least 1 (or None to choose it), got {swaps_per_step}.")
    if patience < 1:
        raise OodmlError(f"patience must be at least 1 step, got {patience}.")
    if seed < 0:
        raise OodmlError(f"seed must be 0 or a positive whole number, got {seed}.")
    if fid_mode not in FID_MODES:
        raise unknown_name("fid_mode", fid_mode, FID_MODES)


def _print_step(state: State) -> None:
    console.print(f"{state.stage:<8} {state.step:>4}   FID {state.fid:9.3f}", highlight=False)
