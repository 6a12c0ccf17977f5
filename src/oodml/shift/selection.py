"""Choose splits that cover the range of shift evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oodml.shift.construction import State


def monotone(states: Sequence[State]) -> list[State]:
    """The states that set a record: ever harder after the start, ever easier before it. Their distances rise strictly.

    Greedy swapping need not rise at every step; a step back uses up data or classes without being harder.
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
    """Positions of `count` of the rising `values`, the first, the last and `must` among them, as even as can be.

    Minimises Σ gap², which equal gaps would make least, exactly, by dynamic programming. With fewer values than
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
    gaps[:inner, inner + 1 :] = np.inf  # no step over the one that must be there
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
