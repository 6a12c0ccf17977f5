"""`build_splits`: from features and labels to a series of splits with rising shift."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

import oodml
from oodml._blas import one_thread_if
from oodml._errors import OodmlError, unknown_name
from oodml._progress import console
from oodml.shift._classes import ClassFeatures, group_by_class
from oodml.shift._partition import Partition
from oodml.shift.construction import State, progression
from oodml.shift.selection import evenly, monotone
from oodml.shift.split import FID_MODES, Split, Splits, with_validation


class HasSides(Protocol):
    """Anything with training and test classes: a `Split`, a data set's default split."""

    @property
    def train(self) -> Sequence[str]: ...
    @property
    def test(self) -> Sequence[str]: ...


def build_splits(
    features: Any,
    labels: Any,
    *,
    class_names: Sequence[str] | None = None,
    start: Literal["half", "random"] | HasSides = "half",
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
        start: "half" (first half of the sorted classes trains), "random" (`seed`), or a split to start from;
            classes that a given split leaves out take no part, nor do those of `class_names` without images.
        swaps_per_step: classes exchanged a step and side. None: 2 at 200 classes and 1,000 at SOP's 22,634 as in
            the paper, 2 · (K / 200)^1.314 between and beyond, at least 1.
        reverse: also walk the other way, to splits easier than the start.
        removal: after swapping, drop the classes nearest to the other side while `keep` of the images remain.
        n_splits: how many to choose; they cover the range of distances evenly, the start always among them.
        fid_mode: distance over "class-means" (the published numbers) or over "images" (the definition).
        patience: steps without progress after which swapping stops.
        seed: of the validation classes (a quarter of the training classes) and of `start="random"`.
        dataset, provenance: written into the splits.

    Returns:
        A list of `Split` whose distances rise strictly, named shift-1, shift-2, …; its `progression` lists every step
        of the construction. It may be shorter than `n_splits`, with a warning, when fewer levels can be reached.
        Deterministic, and independent of the order of the rows.
    """
    _check_options(n_splits, keep, swaps_per_step, fid_mode, patience, seed)
    classes = group_by_class(features, labels, class_names)
    train, test = _starting_sides(classes, start, seed, () if class_names is None else class_names)
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
            report=(lambda state: None) if quiet else _tell,
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
        "start": start if isinstance(start, str) else getattr(start, "name", "given"),
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


def _choose(steps: list[State], count: int) -> list[State]:
    """So many of the steps, or fewer, that rise evenly in distance; the start always among them."""
    candidates = monotone(steps)
    first = next(i for i, state in enumerate(candidates) if state.stage == "start")
    return [candidates[i] for i in evenly([state.fid for state in candidates], count, first)]


def _as_split(classes: ClassFeatures, state: State, *, provenance: dict[str, Any], **about: Any) -> Split:
    """A step of the construction as a split; `about` are its name and other fields."""
    train, test = ([classes.names[c] for c in side] for side in (state.train, state.test))
    return Split(train, test, fid=state.fid, provenance={**provenance, **_facts(classes, state)}, **about)


def default_swaps(classes: int) -> int:
    """Classes exchanged a step and side: a power law through the paper's two values, 2 of 200 and 1,000 of 22,634."""
    exponent = np.log(1000 / 2) / np.log(22_634 / 200)
    return max(1, round(2 * (classes / 200) ** exponent))


def _starting_sides(
    classes: ClassFeatures, start: str | HasSides, seed: int, class_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    count = len(classes.names)
    if isinstance(start, str):
        if start not in ("half", "random"):
            raise unknown_name("start", start, ("half", "random"))
        order = np.arange(count) if start == "half" else np.random.default_rng(seed).permutation(count)
        train, test = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    else:
        split = Split(list(start.train), list(start.test))  # checks that no class is on both sides
        empty = set(map(str, class_names)).difference(classes.names)
        train, test = (
            classes.positions([name for name in side if name not in empty], f"the {told} side of start")
            for side, told in ((split.train, "training"), (split.test, "test"))
        )
    if len(train) < 2 or len(test) < 2:
        raise OodmlError(
            f"Splits need at least four classes, two a side, to exchange any; the start has {len(train)} training and "
            f"{len(test)} test classes."
        )
    return train, test


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


def _tell(state: State) -> None:
    console.print(f"{state.stage:<8} {state.step:>4}   FID {state.fid:9.3f}", highlight=False)
