"""How much fits into the time given: pictures, views, methods, splits, steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

# What is tried, most telling first; a short audit stops after the first few. S2SD's wide branches cost five times as
# much a step as the others, so it comes last.
METHODS: dict[str, str | dict[str, Any]] = {
    "multisimilarity": "multisimilarity",
    "margin": "margin",
    "proxyanchor": "proxyanchor",
    "R-margin": {"name": "rho", "base": "margin"},
    "S2SD": {"name": "s2sd", "base": "multisimilarity", "targets": [1024]},
}
SEEDS = 5
FEATURE_SHARE = 0.4  # of the time, for features
# Kept back for ending the runs, scores, forecast and page: a share, and so many seconds. As soon as it is known what a
# run takes beside its steps: what so many of them do, or a few seconds; on a busy machine all of these grow together.
REPORT_SHARE, REPORT_SECONDS, REPORT_RUNS, FEWEST_SECONDS = 0.08, 15.0, 15, 6.0
PICTURES_A_MINUTE = 400  # at 33 a second, their evaluation view takes a fifth of the time
FEW_PICTURES = 8  # of a class; rather fewer classes than fewer pictures of each
MOST_VIEWS = 8


@dataclass(frozen=True)
class Size:
    """What is run: the first so many methods, splits at most, and steps a run."""

    methods: int
    splits: int
    steps: int


@dataclass(frozen=True)
class Sized:
    """What an audit of so many `seconds` chose. Started again with the same time it goes on with that, whatever the
    machine is doing now: other steps or views would be other runs, and the finished ones would not count."""

    seconds: float
    backbone: str
    views: int
    size: Size
    fixed: float  # seconds that a run took beside its steps, the median over methods

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Sized:
        return cls(**{**kept, "size": Size(**kept["size"])})


# From the most that is worth doing down to the least that answers anything.
LADDER = (
    Size(5, 8, 1500),
    Size(5, 6, 1000),
    Size(5, 6, 600),
    Size(4, 6, 600),
    Size(4, 6, 300),
    Size(3, 5, 300),
    Size(3, 4, 200),
    Size(2, 4, 150),
    Size(1, 3, 100),
    Size(1, 3, 50),
)


@dataclass(frozen=True)
class Cost:
    """Seconds of a run: those that every run takes, and those of a step."""

    fixed: float
    step: float

    def of(self, steps: int) -> float:
        return self.fixed + steps * self.step


class Clock:
    """The time given. `left` is what remains before the part kept back for scores, forecast and page begins."""

    def __init__(self, minutes: float, began: float | None = None) -> None:
        self.total, self.began = 60.0 * minutes, time.monotonic() if began is None else began
        self.kept_back = REPORT_SHARE * self.total + REPORT_SECONDS

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.total - self.kept_back - self.spent

    def learn(self, fixed: float) -> None:
        """Keep back what fits the speed of the machine, by what a run takes beside its steps."""
        self.kept_back = REPORT_SHARE * self.total + max(FEWEST_SECONDS, REPORT_RUNS * fixed)


def reduction(minutes: float, images: int, classes: int) -> dict[str, int]:
    """How a folder is reduced to what the time allows, as options of the data set: fewer pictures of each class first,
    fewer classes where few pictures of each would be left. Empty: not at all."""
    most = int(PICTURES_A_MINUTE * minutes)
    if images <= most:
        return {}
    if most // classes >= FEW_PICTURES:
        return {"images_per_class": most // classes}
    return {"images_per_class": FEW_PICTURES, "most_classes": max(4, most // FEW_PICTURES)}


def affordable_views(clock: Clock, seconds_a_view: float) -> int:
    """Augmented views that surely fit into the time for features, by what the first view took."""
    left = FEATURE_SHARE * clock.total - clock.spent
    return max(0, min(MOST_VIEWS, int(left / seconds_a_view)))


def choose_size(seconds: float, workers: int, costs: list[Cost], splits: int) -> Size:
    """The first rung that leaves time for two seeds; else the first with time for one; else the last."""
    rungs = [Size(min(r.methods, len(costs)), min(r.splits, splits), r.steps) for r in LADDER]
    for seeds in (2, 1):
        for rung in rungs:
            work = rung.splits * sum(cost.of(rung.steps) for cost in costs[: rung.methods])
            if seeds * work / workers <= seconds:
                return rung
    return rungs[-1]
