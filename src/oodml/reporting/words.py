"""The first lines of the page: which method generalises best, by how much, and what is no more than noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oodml.evaluation.estimate import estimate, share_text
from oodml.reporting.material import MATCHED, Material, mean_sd
from oodml.shift import Placement
from oodml.study.leaderboard import ranking


def answer(material: Material) -> list[str]:
    """One to five sentences; each states only what the runs can tell. Right after the first: what is still missing."""
    first, *rest = _found(material)
    unfinished = material.table.unfinished
    return [first, *([unfinished] if unfinished else []), *rest]


def _found(material: Material) -> list[str]:
    """What the finished runs say. An audit's folder has its own words."""
    if audited := material.json("audit.json"):
        return [*audited["answer"], *audited["notes"]]
    if material.table.shifts < 2:
        return _one_shift(material)
    ranked = list(material.table.ags(material.metric).items())
    if not ranked:
        return ["No method has finished on every split yet, so none can be ranked."]
    best, score = ranked[0]
    score_text = share_text(score.mean, score.half_width)
    of = metric_words(material.metric, len(material.table.splits))
    if len(ranked) == 1:
        return [
            f"{best} is the only method that finished on every split: AGS {score_text} ({of}).",
            *_gain(material, best),
        ]
    second = ranked[1][0]
    comparison = material.table.compare(material.metric, best, second)
    if np.isnan(comparison.low):  # one seed has no interval
        return [
            f"{best} has the highest AGS, {100 * score.mean:.1f} ({of}).",
            comparison.sentence,
            *_gain(material, best),
        ]
    if comparison.distinguishable:
        first = f"{best} generalises best: AGS {score_text} ({of})."
        return [first, *_lead(material, best, second), *_gain(material, best)]
    first = f"{best} has the highest AGS, {score_text} ({of}), but its lead is within the noise."
    return [first, comparison.sentence, *_gain(material, best)]


def metric_words(metric: str, splits: int) -> str:
    if metric != MATCHED:
        return metric
    return f"recall@1 at one gallery size{' for all splits' if splits > 1 else ''}"


def _lead(material: Material, best: str, second: str) -> list[str]:
    """How the lead moves from the smallest shift to the largest, where seeds can tell that it moves: both have some."""
    if not {best, second} <= set(material.trained):
        return []
    lead = _lead_by_seed(material, best, second)
    if not lead.shape[1]:
        return []
    start, end = lead[0].mean(), lead[-1].mean()
    if lead.shape[1] == 1:
        return [f"Its lead over {second} is {start:.1f} points at the smallest shift and {end:.1f} at the largest."]
    change = estimate(lead[-1] - lead[0])  # seed by seed: one may be good or bad on every split
    if abs(change.mean) <= change.half_width:
        return [
            f"Its lead over {second} is {start:.1f} points at the smallest shift and {end:.1f} at the largest, "
            "a change that is within the noise."
        ]
    verb = "grows" if end > start else "shrinks"
    return [f"Its lead over {second} {verb} from {start:.1f} to {end:.1f} points as the shift grows."]


def _lead_by_seed(material: Material, best: str, second: str) -> NDArray[np.float64]:
    """In points, (split, seed), of the seeds that both have."""
    a, b = material.table.side_by_side(material.metric, best, second)
    return 100 * (a - b)


def _gain(material: Material, best: str) -> list[str]:
    """What training bought over the untrained backbone at both ends."""
    metric = material.metric
    if np.isnan(material.table.gain(metric)).all() and "recall@1" in material.metrics:
        metric = "recall@1"  # the untrained backbone may not be scored at one gallery size
    means = 100 * mean_sd(material.table.gain(metric))[0][material.style(best)]
    if np.isnan(means[[0, -1]]).any():
        return []
    what = "" if metric == material.metric else f" of {metric}"
    return [
        f"Over the untrained backbone it gains {means[0]:+.1f} points{what} at the smallest shift and {means[-1]:+.1f} "
        "at the largest."
    ]


def _one_shift(material: Material) -> list[str]:
    """One split, or several of one FID or of none, whose mean counts."""
    table = material.table
    ranked = ranking(table, material.metric)
    if not ranked:
        return ["No method has finished on every split yet, so none can be ranked."]
    best, found = next(iter(ranked.items()))
    where, end = _where(len(table.splits), None not in table.fids)
    score = share_text(found.mean, found.half_width)
    text = f"{best} scores best on {where}: {metric_words(material.metric, len(table.splits))} {score}."
    if len(ranked) > 1:
        text += " " + _one_shift_lead(material, best, list(ranked)[1])
    return [text, end]


def _where(splits: int, measured: bool) -> tuple[str, str]:
    """What to call splits of one FID, and what they cannot tell. None of them may be measured."""
    cannot = "cannot say how a method generalises under a growing shift"
    if splits == 1:
        return "this one split", f"One split {cannot}: add splits of other FIDs."
    if measured:
        return f"these {splits} splits of one shift", f"Splits of one shift {cannot}: add splits of other FIDs."
    which = "splits whose shift was not measured"
    return f"these {splits} {which}", f"{which[0].upper()}{which[1:]} {cannot}: write the FID into their files."


def _one_shift_lead(material: Material, best: str, second: str) -> str:
    lead = _lead_by_seed(material, best, second).mean(axis=0)
    if not len(lead):
        return f"It has no seed in common with {second}, so nothing says whether its lead is more than noise."
    found = estimate(lead)
    if not {best, second} & set(material.trained):
        return f"It is {found.mean:.1f} points ahead of {second}; neither was trained, so there are no seeds to vary."
    if found.n < 2:
        return f"One seed cannot say whether its lead over {second} is more than noise."
    if found.mean <= found.half_width:
        return f"Its lead over {second}, {found.mean:.1f} points, is within the noise."
    return f"It is {found.mean:.1f} ± {found.half_width:.1f} points ahead of {second}."


def placement_sentence(placed: Placement) -> str:
    """Where a target falls among the splits of the training images."""
    assert placed.target is not None
    low, high = placed.target.interval()
    mean, draws = placed.target.mean, len(placed.target.values)
    span = f"FID {mean:.1f} ({low:.1f} to {high:.1f} over {draws} draws of {placed.n})"
    ordered = sorted(placed.splits, key=lambda spread: spread.mean)
    below = [spread for spread in ordered if spread.mean <= mean]
    if not ordered:
        return f"The target is at {span}; there are no splits to compare it with."
    if not below:
        return f"The target is nearer than the easiest split, {ordered[0].name} ({ordered[0].mean:.1f}): {span}."
    if len(below) == len(ordered):
        return f"The target is farther than the hardest split, {below[-1].name} ({below[-1].mean:.1f}): {span}."
    above = ordered[len(below)]
    return (
        f"The target falls between {below[-1].name} ({below[-1].mean:.1f}) and {above.name} ({above.mean:.1f}): {span}."
    )
