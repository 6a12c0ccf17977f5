"""Move classes between train and test so that the distance of the two sides grows (ooDML, section 3.3).

Swapping exchanges the classes that Eq. 2 and 3 pick: on each side those with the largest

    ‖μ_C − μ_own‖ − ‖μ_C − μ_other‖,

classes nearer to the other side than to their own. Reversed, it exchanges those with the smallest, and the sides come
closer. Removal drops the classes nearest to the other side's mean. Classes are chosen by means alone; the exact
distance is computed at every step and decides when to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oodml.shift._partition import Partition

Report = Callable[["State"], None]


@dataclass(frozen=True)
class State:
    """One step of a construction: the classes of each side and the distance between them."""

    train: np.ndarray
    test: np.ndarray
    fid: float
    approximate: float
    stage: str  # "start", "swap", "reverse" or "removal"
    step: int = 0
    moved: int = 0  # classes exchanged, or removed, per side so far in this stage


def measured(partition: Partition, train: np.ndarray, test: np.ndarray, stage: str, **facts: Any) -> State:
    """The state with these sides, its approximate and exact distance computed."""
    train, test = np.sort(train), np.sort(test)
    return State(train, test, partition.exact(train, test), partition.approximate(train, test), stage, **facts)


def swap(
    partition: Partition,
    start: State,
    per_step: int,
    *,
    reverse: bool = False,
    patience: int = 5,
    rest: int = 5,
    report: Report = lambda state: None,
) -> list[State]:
    """Exchange `per_step` classes per step until the distance has not risen (`reverse`: fallen) for `patience` steps.

    A class that was exchanged is not moved for `rest` steps, so that two classes do not alternate.
    Both sides keep their number of classes. Returns the steps after `start`.
    """
    sign = -1.0 if reverse else 1.0
    stage = "reverse" if reverse else "swap"
    moved_at = np.full(len(partition.centres), -np.inf)
    states: list[State] = []
    state, best, waited = start, sign * start.fid, 0
    while waited < patience:
        step = len(states) + 1
        resting = moved_at >= step - rest
        leaving = [
            _most_out_of_place(partition, own, other, per_step, sign, resting)
            for own, other in ((state.train, state.test), (state.test, state.train))
        ]
        count = min(len(leaving[0]), len(leaving[1]))
        if not count:
            break
        out_train, out_test = leaving[0][:count], leaving[1][:count]
        moved_at[out_train] = moved_at[out_test] = step
        state = measured(
            partition,
            np.concatenate([np.setdiff1d(state.train, out_train), out_test]),
            np.concatenate([np.setdiff1d(state.test, out_test), out_train]),
            stage,
            step=step,
            moved=state.moved + count if states else count,
        )
        states.append(state)
        report(state)
        waited = 0 if sign * state.fid > best else waited + 1
        best = max(best, sign * state.fid)
    return states


def remove(
    partition: Partition,
    start: State,
    per_step: int,
    *,
    least_images: float,
    report: Report = lambda state: None,
) -> list[State]:
    """Drop `per_step` classes per side and step, those nearest to the other side's mean, while enough images remain.

    Stops before fewer than `least_images` images, or two classes per side, would be left. Returns the steps taken.
    """
    states: list[State] = []
    state = start
    while True:
        count = min(per_step, len(state.train) - 2, len(state.test) - 2)
        kept = [
            np.sort(own[np.argsort(partition.distances(own, other), kind="stable")[count:]])
            for own, other in ((state.train, state.test), (state.test, state.train))
        ]
        if count < 1 or partition.sizes[np.concatenate(kept)].sum() < least_images:
            return states
        moved = state.moved + count if states else count
        state = measured(partition, kept[0], kept[1], "removal", step=len(states) + 1, moved=moved)
        states.append(state)
        report(state)


def progression(
    partition: Partition,
    train: np.ndarray,
    test: np.ndarray,
    *,
    per_step: int,
    reverse: bool,
    removal: bool,
    keep: float,
    patience: int = 5,
    rest: int = 5,
    report: Report = lambda state: None,
) -> list[State]:
    """Every step: reversed ones first (easiest first, negative numbers), the start, swaps, then removals.

    Removal begins at the hardest state that swapping reached.
    """
    start = measured(partition, train, test, "start")
    report(start)
    easier = []
    if reverse:
        walk = swap(partition, start, per_step, reverse=True, patience=patience, rest=6 * rest, report=report)
        easier = [replace(state, step=-state.step) for state in reversed(walk)]
    harder = swap(partition, start, per_step, patience=patience, rest=rest, report=report)
    reduced = []
    if removal:
        hardest = max([start, *harder], key=lambda state: state.fid)
        least = keep * partition.sizes[np.concatenate([train, test])].sum()
        reduced = remove(partition, hardest, per_step, least_images=least, report=report)
    return [*easier, start, *harder, *reduced]


def _most_out_of_place(
    partition: Partition, own: np.ndarray, other: np.ndarray, count: int, sign: float, resting: np.ndarray
) -> np.ndarray:
    """The `count` classes of a side with the largest own-minus-other distance (sign −1: the smallest), ties by name."""
    score = sign * (partition.distances(own, own) - partition.distances(own, other))
    free = np.flatnonzero(~resting[own])
    return own[free[np.argsort(-score[free], kind="stable")[:count]]]
