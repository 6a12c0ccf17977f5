"""The result of few-shot adaptation: scores over episodes, before and after, and their file in a run's folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oodml._errors import OodmlError
from oodml._files import write_json
from oodml.evaluation.estimate import estimate

FILE = "few_shot.json"


class EpisodeScore(NamedTuple):
    """Mean over episodes, half width of its 95 % t-interval (NaN for one episode), and every episode's value."""

    mean: float
    half_width: float
    per_episode: tuple[float, ...]


class FewShot(dict[str, dict[str, EpisodeScore]]):
    """{"zero": {metric: EpisodeScore}, "few": {...}}: before and after adaptation, on the same query images.

    `about` is how it was made: shots, episodes, steps, lr, beta, dataset, split, seconds, and `notes` for a reader.
    """

    def __init__(self, zero: dict[str, EpisodeScore], few: dict[str, EpisodeScore], about: dict[str, Any]) -> None:
        super().__init__(zero=zero, few=few)
        self.about = about

    @property
    def notes(self) -> list[str]:
        return self.about["notes"]

    def gain(self, metric: str = "recall@1") -> EpisodeScore:
        """few − zero, per episode: both values are of the same images, so the interval is that of their difference."""
        pairs = zip(self["few"][metric].per_episode, self["zero"][metric].per_episode, strict=True)
        return over_episodes([few - zero for few, zero in pairs])

    def to_json(self) -> dict[str, Any]:
        """Plain data: a score is [mean, half width or null, [every episode]]."""
        plain = {
            side: {
                name: [s.mean, None if math.isnan(s.half_width) else s.half_width, list(s.per_episode)]
                for name, s in scores.items()
            }
            for side, scores in self.items()
        }
        return {**plain, "about": self.about}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FewShot:
        def read(scores: Mapping[str, Any]) -> dict[str, EpisodeScore]:
            return {
                name: EpisodeScore(mean, math.nan if half is None else half, tuple(values))
                for name, (mean, half, values) in scores.items()
            }

        return cls(read(data["zero"]), read(data["few"]), dict(data["about"]))


def over_episodes(values: Sequence[float]) -> EpisodeScore:
    found = estimate(values)
    return EpisodeScore(found.mean, found.half_width, tuple(values))


def save_few_shot(run: str | Path, found: FewShot) -> Path:
    """Store a result in `few_shot.json` of a run's folder, under its number of shots; other numbers stay."""
    path = Path(run) / FILE
    if not path.parent.is_dir():
        raise OodmlError(f"There is no run folder {path.parent} to store a few-shot result in.")
    kept = {shots: each.to_json() for shots, each in load_few_shot(run).items()}
    write_json(
        path, {str(shots): each for shots, each in sorted({**kept, found.about["shots"]: found.to_json()}.items())}
    )
    return path


def load_few_shot(run: str | Path) -> dict[int, FewShot]:
    """The few-shot results stored in a run's folder, by their number of shots; empty where there are none."""
    path = Path(run) / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {int(shots): FewShot.from_json(each) for shots, each in data.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise OodmlError(f"{path} cannot be read as few-shot results ({error}). Remove it and adapt again.") from error
