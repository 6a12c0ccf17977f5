"""The answer of an audit in words; each sentence says no more than the runs can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oodml.shift import Placement
from oodml.study.leaderboard import METRIC
from oodml.study.statistics import Comparison
from oodml.study.table import TRAINED, StudyTable

FEW_CLASSES, FEWEST_FOR_AN_INTERVAL = 10, 5


@dataclass(frozen=True)
class Expectation:
    """Recall@1 of one method on a split's unseen classes, with its 95 % interval over classes."""

    split: str
    fid: float
    train_classes: int
    test_classes: int
    recall: float
    low: float
    high: float
    matched: float

    @property
    def has_interval(self) -> bool:
        """A bootstrap over a handful of classes, or over classes that score alike, promises far too much."""
        return self.test_classes >= FEWEST_FOR_AN_INTERVAL and f"{100 * self.low:.1f}" != f"{100 * self.high:.1f}"


def verdict(table: StudyTable, best: str | None, untrained: str) -> tuple[str, str]:
    """(what to use, the sentence that says so and whether training beats the untrained backbone)."""
    if best is None:
        return untrained, "Use the untrained backbone: no method could be trained in the time given."
    found, noise = training_against(table, best, untrained), False
    if found is None:
        ahead, behind = (table.means(METRIC)[table.methods.index(name)].mean() for name in (best, untrained))
        lead, doubt = ahead - behind, ", as far as one split can tell"
    elif found.low != found.low:
        lead, doubt = found.difference, " of AGS, as far as one seed can tell"
    else:
        lead, noise = found.difference, not _can_be_told(found)
        told = ", which may be no more than noise" if noise else _in_both_seeds(found)
        doubt = f" of AGS{told} ({found.interval})"
    points = f"{100 * abs(lead):.1f} points{doubt}"
    if noise:
        side = "ahead of" if lead > 0 else "behind"
        return untrained, f"Use the untrained backbone: {best} is {side} it by {points}."
    if lead > 0:
        return best, f"Use {best}: training puts it ahead of the untrained backbone by {points}."
    if found is None or not found.distinguishable:
        return untrained, f"Use the untrained backbone: the best method, {best}, is behind it by {points}."
    return untrained, (
        f"Use the untrained backbone: training a head does not pay on this data, the best method, {best}, is behind it "
        f"by {points}. With more classes to train on this may change."
    )


def _can_be_told(found: Comparison) -> bool:
    """Whether to act on a difference. The interval of two seeds is so wide that it would never let one: there, as with
    one seed, the better guess is taken where both agree, and the words say how little it is."""
    return found.distinguishable or (len(found.by_seed) == 2 and found.unanimous)


def _in_both_seeds(found: Comparison) -> str:
    return "" if found.distinguishable else "; both seeds agree, but two cannot rule out chance"


def training_against(table: StudyTable, best: str, untrained: str) -> Comparison | None:
    """The best trained method against the untrained backbone; None with a single level of shift."""
    return table.compare(METRIC, best, untrained) if table.shifts > 1 else None


def runner_up(table: StudyTable) -> str | None:
    """How the best trained method stands to the next one."""
    if table.shifts < 2:
        return None
    ranked = [name for name in table.ags(METRIC) if table.kinds[name] == TRAINED]
    if len(ranked) < 2:
        return None
    found = table.compare(METRIC, *ranked[:2])
    if found.difference < 0:  # over the seeds that both have the other one leads
        return (
            f"Among the methods: {found.first} and {found.second} cannot be told apart, {found.first} leads over all "
            f"of its seeds and {found.second} over those that both have."
        )
    return f"Among the methods: {found.sentence}"


def expectations(use: str, like: Expectation, unlike: Expectation | None, gallery: tuple[int, int]) -> list[str]:
    """What to expect on classes like those trained on, and unlike them."""
    told = [
        f"On unseen classes like yours ({_about(like)}) expect {use} to find the right class first {_recall(like)}."
    ]
    if unlike is not None:
        told.append(f"On unseen classes unlike yours ({_about(unlike)}) expect {_recall(unlike)}.")
        told.append(
            f"With one gallery for both, {gallery[0]} classes of {gallery[1]} pictures, that is "
            f"{100 * like.matched:.1f} % and {100 * unlike.matched:.1f} %."
        )
    both = [x for x in (like, unlike) if x is not None]
    fewest = min(x.test_classes for x in both)
    if fewest < FEW_CLASSES:
        shown = ", as their intervals show" if all(x.has_interval for x in both) else ""
        told.append(
            f"{fewest} test classes are few: another choice of classes could move these numbers by many points{shown}."
        )
    return told


def target_words(placed: Placement, forecast: dict[str, Any] | None, gallery: tuple[int, int]) -> list[str]:
    """Where the target stands, and what to expect there."""
    assert placed.target is not None
    low, high = placed.target.interval()
    told = [
        f"The target's {placed.target_images} pictures are at FID {placed.target.mean:.1f} from yours ({low:.1f} to "
        f"{high:.1f} over draws of {placed.n}); your own splits, in draws of as many, span "
        f"{min(placed.fids.values()):.1f} to {max(placed.fids.values()):.1f}. Smaller draws make every FID larger, so "
        "compare these with one another only."
    ]
    if placed.shared:
        told.append(
            f"{placed.shared_targets} of the target's {placed.target_images} pictures are in your folder too, or "
            f"nearly ({placed.searched} pictures of it were searched): a test on them would be too kind, and the "
            "forecast is about new pictures only."
        )
    if forecast is None or forecast.get("target") is None:
        told.append("Fewer than three levels of shift were measured: too few for a forecast.")
        return told
    where = "" if not forecast["target"]["inside"] else f" That is for {gallery[0]} classes of {gallery[1]} pictures."
    return [*told, f"{forecast['target']['sentence']}{where}"]


def _about(x: Expectation) -> str:
    return f"split {x.split}, FID {x.fid:.1f}, {x.train_classes} classes trained on, {x.test_classes} tested"


def _recall(x: Expectation) -> str:
    share = f"{100 * x.recall:.1f} % of the time"
    if x.has_interval:
        return f"{share} (95 % interval over classes {100 * x.low:.1f} to {100 * x.high:.1f})"
    few = x.test_classes < FEWEST_FOR_AN_INTERVAL
    why = f"{x.test_classes} classes are too few for one" if few else "all test classes score alike"
    return f"{share} (no interval: {why})"
