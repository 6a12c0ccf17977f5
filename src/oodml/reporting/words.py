"""Sentences: the first lines of the page, the answer of an audit, where a target is. Numbers come from elsewhere; each
sentence states only what the runs can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oodml.evaluation.estimate import estimate, share_text
from oodml.reporting.report_data import MATCHED, ReportData, mean_sd
from oodml.shift import Placement
from oodml.study.advice import FEWEST_CLASSES, Advice, Expectation
from oodml.study.leaderboard import ranking
from oodml.study.statistics import Comparison

FEW_CLASSES = 10  # another choice of so few test classes could change the scores by many points


def answer(data: ReportData) -> list[str]:
    """One to five sentences; each states only what the runs can show. The second says what is still missing."""
    first, *rest = _found(data)
    unfinished = data.table.unfinished
    return [first, *([unfinished] if unfinished else []), *rest]


def _found(data: ReportData) -> list[str]:
    """What the finished runs say. An audit's folder has its own words."""
    if audited := data.json("audit.json"):
        return [*audited["answer"], *audited["notes"]]
    if data.table.shifts < 2:
        return _one_shift(data)
    ranked = list(data.table.ags(data.metric).items())
    if not ranked:
        return ["No method has finished on every split yet, so none can be ranked."]
    best, score = ranked[0]
    score_text = share_text(score.mean, score.half_width)
    of = metric_words(data.metric, len(data.table.splits))
    if len(ranked) == 1:
        return [
            f"{best} is the only method that finished on every split: AGS {score_text} ({of}).",
            *_gain(data, best),
        ]
    second = ranked[1][0]
    comparison = data.table.compare(data.metric, best, second)
    if np.isnan(comparison.low):  # one seed has no interval
        return [
            f"{best} has the highest AGS, {100 * score.mean:.1f} ({of}).",
            comparison_sentence(comparison),
            *_gain(data, best),
        ]
    if comparison.distinguishable:
        first = f"{best} generalises best: AGS {score_text} ({of})."
        return [first, *_lead(data, best, second), *_gain(data, best)]
    first = f"{best} has the highest AGS, {score_text} ({of}), but its lead is within the noise."
    return [first, comparison_sentence(comparison), *_gain(data, best)]


def metric_words(metric: str, splits: int) -> str:
    if metric != MATCHED:
        return metric
    return f"recall@1 at one gallery size{' for all splits' if splits > 1 else ''}"


def _lead(data: ReportData, best: str, second: str) -> list[str]:
    """How the lead moves from the smallest shift to the largest, where both methods have seeds."""
    if not {best, second} <= set(data.trained):
        return []
    lead = _lead_by_seed(data, best, second)
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


def _lead_by_seed(data: ReportData, best: str, second: str) -> NDArray[np.float64]:
    """In points, (split, seed), of the seeds that both have."""
    a, b = data.table.side_by_side(data.metric, best, second)
    return 100 * (a - b)


def _gain(data: ReportData, best: str) -> list[str]:
    """The gain of training over the untrained backbone at both ends."""
    metric = data.metric
    if np.isnan(data.table.gain(metric)).all() and "recall@1" in data.metrics:
        metric = "recall@1"  # the untrained backbone may not be scored at one gallery size
    means = 100 * mean_sd(data.table.gain(metric))[0][data.style(best)]
    if np.isnan(means[[0, -1]]).any():
        return []
    what = "" if metric == data.metric else f" of {metric}"
    return [
        f"Over the untrained backbone it gains {means[0]:+.1f} points{what} at the smallest shift and {means[-1]:+.1f} "
        "at the largest."
    ]


def _one_shift(data: ReportData) -> list[str]:
    """One split, or several of one FID or of none, whose mean counts."""
    table = data.table
    ranked = ranking(table, data.metric)
    if not ranked:
        return ["No method has finished on every split yet, so none can be ranked."]
    best, found = next(iter(ranked.items()))
    where, end = _where(len(table.splits), None not in table.fids)
    score = share_text(found.mean, found.half_width)
    text = f"{best} scores best on {where}: {metric_words(data.metric, len(table.splits))} {score}."
    if len(ranked) > 1:
        text += " " + _one_shift_lead(data, best, list(ranked)[1])
    return [text, end]


def _where(splits: int, measured: bool) -> tuple[str, str]:
    """What to call splits of one FID or of none, and what they cannot show."""
    cannot = "cannot say how a method generalises under a growing shift"
    if splits == 1:
        return "this one split", f"One split {cannot}: add splits of other FIDs."
    if measured:
        return f"these {splits} splits of one shift", f"Splits of one shift {cannot}: add splits of other FIDs."
    which = "splits whose shift was not measured"
    return f"these {splits} {which}", f"{which[0].upper()}{which[1:]} {cannot}: write the FID into their files."


def _one_shift_lead(data: ReportData, best: str, second: str) -> str:
    lead = _lead_by_seed(data, best, second).mean(axis=0)
    if not len(lead):
        return f"It has no seed in common with {second}, so nothing says whether its lead is more than noise."
    found = estimate(lead)
    if not {best, second} & set(data.trained):
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


# -- comparisons, forecasts, rankings ---------------------------------------------------------------------------------


def comparison_sentence(found: Comparison) -> str:
    """Which of two methods is ahead, and whether the seeds can show it."""
    points = f"{100 * abs(found.difference):.1f} points of AGS"
    if points.startswith("0.0 ") and not found.distinguishable:
        return f"{found.first} and {found.second} are level: less than 0.1 points of AGS between them."
    ahead, behind = (found.first, found.second) if found.difference >= 0 else (found.second, found.first)
    if not found.by_seed:
        return f"{ahead} is {points} ahead of {behind}; neither was trained here, so there are no seeds to compare."
    if math.isnan(found.low):
        return f"{ahead} is {points} ahead of {behind}, but one seed cannot show whether that is more than noise."
    if found.distinguishable:
        return f"{ahead} is {points} ahead of {behind} ({lead_interval(found)})."
    return f"{found.first} and {found.second} cannot be distinguished: {points} between them ({lead_interval(found)})."


def lead_interval(found: Comparison) -> str:
    """The interval of the lead, whichever method has it; with two seeds, the advice to run more."""
    low, high = (found.low, found.high) if found.difference >= 0 else (-found.high, -found.low)
    more = ", and more would narrow it" if len(found.by_seed) == 2 else ""
    return f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} over {len(found.by_seed)} seeds{more}"


def forecast_sentence(forecast: Mapping[str, Any]) -> str:
    """What to expect on the target of a forecast.json."""
    target = forecast["target"]
    of_method = f" with {forecast['method']}" if forecast.get("method") else ""
    if not target["inside"]:
        measured = [point["fid"] for point in forecast["curve"]]
        low, high = min(measured), max(measured)
        side = "above" if target["fid"] > high else "below"
        return (
            f"The shift of the target (FID {target['fid']:.1f}) is {side} the measured range {low:.1f} to {high:.1f}: "
            f"no forecast. At the nearest measured split the score{of_method} is {100 * target['value']:.1f} %."
        )
    return (
        f"At FID {target['fid']:.1f} expect {100 * target['value']:.1f} %{of_method} (95 % interval "
        f"{100 * target['low']:.1f} to {100 * target['high']:.1f}, for scatter about the curve alone: which classes a "
        "target has changes recall too); left-out splits were predicted to "
        f"{100 * forecast['leave_one_out_error']:.1f} points."
    )


def leaderboard_with_sentences(board: dict[str, Any]) -> dict[str, Any]:
    """A leaderboard as it is written to a .json file: every comparison with its sentence."""
    metrics = {
        metric: {
            **standing,
            "neighbours": [
                {**each, "sentence": comparison_sentence(_comparison(each))} for each in standing["neighbours"]
            ],
        }
        for metric, standing in board["metrics"].items()
    }
    return {**board, "metrics": metrics}


def leaderboard_markdown(board: dict[str, Any], title: str = "Leaderboard") -> str:
    """A leaderboard for people: one table per metric, in per cent, and a sentence on each pair of neighbours."""
    names = [
        each["name"] if each["fid"] is None else f"{each['name']} (FID {each['fid']:.1f})" for each in board["splits"]
    ]
    parts = [f"# {title}"]
    for metric, standing in board["metrics"].items():
        heads = ["#", "method", "kind", standing["ranked_by"], *names]
        lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for row in standing["ranking"]:
            cells = [percent(row["splits"].get(each["name"])) for each in board["splits"]]
            texts = [str(row["rank"]), row["method"], row["kind"], percent(row["score"]), *cells]
            lines.append(f"| {' | '.join(each.replace('|', '/') for each in texts)} |")
        parts += [f"## {metric}, per cent", "\n".join(lines)]
        parts += ["\n".join(f"- {each}" for each in found)] if (found := standing_sentences(standing)) else []
    return "\n\n".join([*parts, *board.get("notes", [])]) + "\n"


def standing_sentences(standing: dict[str, Any]) -> list[str]:
    """What the table of a metric does not show: the methods that are not ranked, the comparisons of neighbours, and how
    exact a forecast is."""
    sentences = [comparison_sentence(_comparison(each)) for each in standing["neighbours"]]
    if standing["not_ranked"]:
        sentences.append(f"Not ranked, since a split is missing: {', '.join(standing['not_ranked'])}.")
    if standing["leave_one_out_error"] is not None:
        error = f"{100 * standing['leave_one_out_error']:.1f}"
        sentences.append(f"A left-out split is predicted from the others to {error} points (mean over methods).")
    return sentences


def _comparison(numbers: Mapping[str, Any]) -> Comparison:
    """A comparison from plain data, where None stands for NaN."""
    low, high = (math.nan if numbers[end] is None else numbers[end] for end in ("low", "high"))
    return Comparison(**{**numbers, "low": low, "high": high, "by_seed": tuple(numbers["by_seed"])})


def percent(value: dict[str, Any] | None) -> str:
    """A score of the board with its interval."""
    if value is None:
        return "–"
    return share_text(value["mean"], math.nan if value["half_width"] is None else value["half_width"])


# -- the answer of an audit ------------------------------------------------------------------------------------------


def advice_sentences(advice: Advice) -> list[str]:
    """What to use, whether training beats the untrained backbone, and how the two best methods compare."""
    if advice.best is None:
        return ["Use the untrained backbone: no method was trained on every split."]
    assert advice.lead is not None
    points = f"{100 * abs(advice.lead):.1f} points{_doubt(advice)}"
    sides = "ahead of" if advice.lead > 0 else "behind"
    unused = f"the best method, {advice.best}, is {sides} it by {points}."
    if advice.use == advice.best:
        sentence = f"Use {advice.best}: training puts it ahead of the untrained backbone by {points}."
    elif advice.comparison is not None and advice.comparison.distinguishable:
        sentence = (
            f"Use the untrained backbone: training a head does not improve it on this data, {unused} "
            "With more classes to train on this may change."
        )
    else:
        sentence = f"Use the untrained backbone: {unused}"
    return [sentence, *([] if advice.runner_up is None else [_runner_up(advice.runner_up)])]


def _doubt(advice: Advice) -> str:
    """What follows the points of a lead: the unit, and how certain it is."""
    found = advice.comparison
    if found is None:
        return ", measured on one level of shift only"
    if math.isnan(found.low):
        return " of AGS, measured with one seed only"
    if not advice.decided:
        return f" of AGS, which chance may explain ({lead_interval(found)})"
    both = "" if found.distinguishable else "; both seeds agree, but two seeds cannot exclude chance"
    return f" of AGS{both} ({lead_interval(found)})"


def _runner_up(found: Comparison) -> str:
    if found.difference < 0:  # over the seeds that both have, the order is reversed
        return (
            f"Among the methods: {found.first} and {found.second} cannot be distinguished, {found.first} leads over "
            f"all of its seeds and {found.second} over those that both have."
        )
    return f"Among the methods: {comparison_sentence(found)}"


def expectation_sentences(use: str, expected: Sequence[Expectation], gallery: tuple[int, int]) -> list[str]:
    """What recall to expect on classes like those trained on and, as the second of `expected`, unlike them."""
    like, *others = expected
    sentences = [
        f"On unseen classes like yours ({_conditions(like)}) expect {use} to return the right class first "
        f"{_recall(like)}."
    ]
    for unlike in others:
        sentences.append(f"On unseen classes unlike yours ({_conditions(unlike)}) expect {_recall(unlike)}.")
        sentences.append(
            f"With one gallery for both, {gallery[0]} classes of {gallery[1]} images, that is "
            f"{100 * like.matched:.1f} % and {100 * unlike.matched:.1f} %."
        )
    fewest = min(each.test_classes for each in expected)
    if fewest < FEW_CLASSES:
        shown = "" if any(each.low is None for each in expected) else ", as their intervals show"
        sentences.append(
            f"{fewest} test classes are few: other classes could change these numbers by many points{shown}."
        )
    return sentences


def _conditions(x: Expectation) -> str:
    return f"split {x.split}, FID {x.fid:.1f}, trained on {x.train_classes} classes, tested on {x.test_classes}"


def _recall(x: Expectation) -> str:
    share = f"{100 * x.recall:.1f} % of the time"
    if x.low is not None and x.high is not None:
        return f"{share} (95 % interval over classes {100 * x.low:.1f} to {100 * x.high:.1f})"
    few = x.test_classes < FEWEST_CLASSES
    return (
        f"{share} (no interval: {f'{x.test_classes} classes are too few' if few else 'all test classes score alike'})"
    )


def target_sentences(placed: Placement, forecast: Mapping[str, Any]) -> list[str]:
    """Where the target is, and what to expect there. `forecast` is what forecast.json holds."""
    assert placed.target is not None
    low, high = placed.target.interval()
    sentences = [
        f"The target's {placed.target_images} images are at FID {placed.target.mean:.1f} from yours ({low:.1f} to "
        f"{high:.1f} over draws of {placed.n}); your own splits, in draws of the same size, span "
        f"{min(placed.fids.values()):.1f} to {max(placed.fids.values()):.1f}. Smaller draws make every FID larger: "
        "compare only these numbers with each other."
    ]
    if placed.shared:
        sentences.append(
            f"{placed.shared_targets} of the target's {placed.target_images} images are also in your folder, or nearly "
            f"({placed.searched} images of it were searched): a test on them would be too easy, and the forecast is "
            "for new images only."
        )
    if forecast["target"] is None:
        return [*sentences, "Fewer than three levels of shift were measured: too few for a forecast."]
    classes, images = forecast["gallery"]
    gallery = f" That is for {classes} classes of {images} images." if forecast["target"]["inside"] else ""
    return [*sentences, f"{forecast_sentence(forecast)}{gallery}"]


def worth_sentences(forecast: Mapping[str, Any]) -> list[str]:
    """How accurate a forecast for a target would be; nothing with too few levels of shift for one."""
    error = forecast["leave_one_out_error"]
    if error is None:
        return []
    return [
        f"With {forecast['method']}, a split left out is predicted to {100 * error:.1f} points: the accuracy of a "
        "forecast for other images of yours (--target)."
    ]
