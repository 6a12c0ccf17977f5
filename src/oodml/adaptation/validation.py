"""How far to adapt, chosen on the classes a run held out for validation.

Fine-tuning the last layer on a few images gains at first and then overfits to them; after how many steps depends on the
run. Episodes of the same shots, drawn from the validation classes, show it. The target's queries are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oodml.adaptation.episodes import Episodes, FitOptions, Scores
from oodml.adaptation.target import FEWEST_IMAGES, Target, read_target
from oodml.shift import Split
from oodml.training.data import choose_sets, choose_split

PUBLISHED_LR = 1e-4  # ten times the rate of the papers' runs
SLOW_LR = 1e-5
STOPS = (10, 20, 50, 100, 200, 500, 1000, 2000)
FIRST_STOP_OF_PUBLISHED = 100  # with fewer steps it goes no further than the slow rate
PATIENCE = 2  # stops in a row without a new best, after which a rate is given up
EPISODES = 5
METRIC = "map@1000"  # recall@1 saturates among the few validation classes, and has the larger noise


@dataclass(frozen=True)
class Choice:
    """A rate and a number of steps (0: no adaptation), and the gain of each pair on the validation classes."""

    lr: float
    steps: int
    classes: int
    tried: tuple[tuple[float, int, float], ...]  # rate, steps, mean gain of mAP@1000

    @property
    def note(self) -> str:
        where = f"episodes drawn from the {self.classes} validation classes of the run"
        if self.steps == 0:
            return f"Nothing was adapted: no rate and number of steps gained on {where}."
        return f"Rate {self.lr:g} and {self.steps} steps were chosen on {where}."

    def to_json(self) -> dict[str, Any]:
        return {"classes": self.classes, "tried": [list(each) for each in self.tried]}


def choose_steps(target: Target, shots: int, longest: int, options: FitOptions, quiet: bool) -> Choice | str:
    """The pair of rate and steps (at most `longest`) with the largest gain on the run's own validation classes.

    The slow rate first; if its last number of steps is its best, the published rate too. The gain is in mAP@1000,
    averaged over episodes. Where nothing can be chosen: the reason, as a sentence.
    """
    held_out = validation_target(target, shots, quiet)
    if isinstance(held_out, str):
        return held_out
    simulated = Episodes.read(held_out.with_episodes(shots, EPISODES), shots, EPISODES, options, quiet)
    zero = simulated.scores([METRIC], range(EPISODES), None)
    tried: list[tuple[float, int, float]] = [(0.0, 0, 0.0)]
    for lr, stops in (
        (SLOW_LR, _until(STOPS, longest)),
        (PUBLISHED_LR, _until([s for s in STOPS if s >= FIRST_STOP_OF_PUBLISHED], longest)),
    ):
        path = _gains(simulated, zero, lr, stops, max(gain for *_, gain in tried), quiet)
        tried += path
        if max(tried, key=_gain) != path[-1]:
            break
    lr, steps, _ = max(tried, key=_gain)
    return Choice(lr, steps, len(held_out.split.test), tuple(tried))


def _gain(tried: tuple[float, int, float]) -> float:
    return tried[2]


def _gains(
    simulated: Episodes, zero: Scores, lr: float, stops: Sequence[int], best: float, quiet: bool
) -> list[tuple[float, int, float]]:
    """The gain at every number of steps, until it has not risen for a while."""
    found, since = [], 0
    for steps, layers in simulated.adapted(range(EPISODES), lr, stops, quiet):
        few = simulated.scores([METRIC], range(EPISODES), layers)
        gain = float(np.mean([after[METRIC] - before[METRIC] for after, before in zip(few, zero, strict=True)]))
        found.append((lr, steps, gain))
        best, since = (gain, 0) if gain > best else (best, since + 1)
        if since == PATIENCE:
            break
    return found


def _until(stops: Sequence[int], longest: int) -> list[int]:
    return [*(stop for stop in stops if stop < longest), longest]


def validation_target(target: Target, shots: int, quiet: bool) -> Target | str:
    """The run with the classes it held out as test classes; or why there are none."""
    if target.config.selection != "val":
        return f"the run was trained on its validation classes too (selection={target.config.selection!r})"
    own = target if target.is_own_dataset else read_target(target.run, device=target.trained.device, quiet=quiet)
    data, split = own.data, choose_split(own.data, own.config.split)
    counts = np.bincount(data.labels, minlength=len(data.classes))
    held_out = np.unique(data.labels[choose_sets(data, split, hold_out=True).val])
    usable = [data.classes[label] for label in held_out if counts[label] > shots]
    if len(usable) < 2:
        return f"fewer than two of its {len(held_out)} validation classes have more than {shots} images"
    if shots * len(usable) < FEWEST_IMAGES:
        return f"{len(usable)} validation classes are too few to adapt to {shots} images of each"
    fitted = [name for name in split.train if name not in usable]
    return replace(own, split=Split(fitted, usable, name=f"{split.name}, validation", dataset=data.name))
