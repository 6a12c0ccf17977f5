"""Few-shot adaptation: the gain from a few labelled images of the test classes (ooDML, section 4.4).

The last layers of a trained embedder are fine-tuned on the support images of an episode, and the query images are
scored before and after. The run on disk is never changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from oodml._errors import OodmlError
from oodml.adaptation.episodes import Episodes, FitOptions
from oodml.adaptation.result import EpisodeScore, FewShot, over_episodes
from oodml.adaptation.target import Target, read_target
from oodml.adaptation.validation import PUBLISHED_LR, choose_steps
from oodml.data import Dataset
from oodml.evaluation import check_metrics
from oodml.losses.margin import Margin
from oodml.methods import Method
from oodml.training import distributed

METRICS = ("recall@1", "map@1000")
AUTO = "auto"
BETA = 1.2  # for runs without a margin loss
SHOTS, STEPS = (2, 5, 10), (1000, 1500, 2000)


def few_shot(
    run: str | Path,
    split: Any = None,
    shots: int = 5,
    episodes: int = 10,
    *,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    metrics: Sequence[str] = METRICS,
    steps: int | None = None,
    lr: float | str = AUTO,
    beta: float | None = None,
    batch_size: int = 112,
    views: int | None = None,
    exact: bool = False,
    batched: bool = True,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> FewShot:
    """Adapt a finished run to `shots` images of every test class, and score the other images before and after.

    Frozen backbone; the last linear layer of every head that is used at test time is fine-tuned with margin loss and
    distance mining, β fixed at the value the run started from, Adam without weight decay, batches of two images per
    class. Rate and number of steps are chosen on episodes of the classes the run held out for validation. The published
    ones (`lr=1e-4`) are ten times the papers' rate of training and 1,000, 1,500 and 2,000 steps for 2, 5 and 10 shots,
    interpolated in between. Nothing is ever selected on the target's queries.

    Args:
        run: folder of a finished run; nothing in it is changed (`save_few_shot` stores a result there).
        split: a Split, a file of one, or "default"; None: the run's own. Its episodes are used; if it has none of these
            shots, they are drawn, and a note says so.
        dataset: another dataset than the run's, to adapt to (cross-dataset transfer).
        lr: a number, or "auto" to choose rate and number of steps as above. A run without validation classes then takes
            the published ones, and a note says so.
        steps: replaces the published number of steps; with "auto" it is the largest one tried.
        beta, batch_size: replace the values above.
        views: augmented views of every image, computed once, from which training draws in addition to the evaluation
            view; None: as many as the run has.
        exact: fresh augmentations through the backbone at every step instead, as published; far slower.
        batched: all episodes as one computation; False: one after the other, for the same numbers in more time.
        seed: of batches, mining and augmentation.

    Returns:
        {"zero": {metric: (mean, half width, per episode)}, "few": {...}}, a `FewShot` with `.about` and `.notes`.
    """
    return few_shots(
        run,
        split,
        [shots],
        episodes,
        dataset=dataset,
        device=device,
        quiet=quiet,
        metrics=metrics,
        steps=steps,
        lr=lr,
        beta=beta,
        batch_size=batch_size,
        views=views,
        exact=exact,
        batched=batched,
        seed=seed,
    )[0]


def few_shots(
    run: str | Path,
    split: Any,
    shots: Sequence[int],
    episodes: int = 10,
    *,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    device: str = "auto",
    quiet: bool = False,
    **options: Any,
) -> list[FewShot]:
    """`few_shot` for several numbers of shots: all are checked before a feature is computed, and the run is read once.

    `options` are the other ones of `few_shot`.
    """
    checked = AdaptOptions(episodes=episodes, quiet=quiet, **options)
    for each in shots:
        check_at_least("shots", each, 1)
    target = read_target(run, split, dataset, distributed.join(device).device, quiet)
    targets = [target.with_episodes(each, episodes) for each in shots]
    return [adapt(*each, checked) for each in zip(targets, shots, strict=True)]


@dataclass(frozen=True)
class AdaptOptions:
    """The options of `few_shot` that do not depend on the run or the number of shots, checked."""

    episodes: int
    quiet: bool = False
    metrics: Sequence[str] = METRICS
    steps: int | None = None
    lr: float | str = AUTO
    beta: float | None = None
    batch_size: int = 112
    views: int | None = None
    exact: bool = False
    batched: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least("episodes", self.episodes, 1)
        check_at_least("steps", self.steps, 1)
        check_at_least("batch_size", self.batch_size, 4)
        check_at_least("views", self.views, 0)
        if self.exact and self.views is not None:
            raise OodmlError("views are computed once, and exact draws fresh ones a step: give one or the other.")
        if self.lr != AUTO and not (isinstance(self.lr, Real) and 0 < self.lr < float("inf")):
            raise OodmlError(
                f"lr is a learning rate above 0, or {AUTO!r} to choose it on validation classes; got {self.lr!r}."
            )
        check_metrics(self.metrics)

    def for_run(self, target: Target) -> FitOptions:
        """How the support sets of a target are fitted: options left open are those of the run."""
        views = int(target.config.views or 0) if self.views is None else self.views
        return FitOptions(
            beta=start_boundary(target.trained.method) if self.beta is None else self.beta,
            batch_size=self.batch_size,
            views=0 if self.exact else views,
            exact=self.exact,
            seed=self.seed,
        )


def check_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and (not isinstance(value, Integral) or value < least):
        raise OodmlError(f"{name} must be at least {least}, got {value!r}.")


def adapt(target: Target, shots: int, options: AdaptOptions) -> FewShot:
    """Few-shot adaptation of a run to its target, whose split has the episodes."""
    began = time.perf_counter()
    fit, episodes = options.for_run(target), options.episodes
    longest = round(float(np.interp(shots, SHOTS, STEPS))) if options.steps is None else options.steps
    rate, steps, chosen, notes = _rate_and_steps(target, shots, longest, options, fit)
    asked = Episodes.read(target, shots, episodes, fit, options.quiet)
    zero = asked.scores(options.metrics, range(episodes), None)
    few = []
    for group in [range(episodes)] if options.batched else [range(i, i + 1) for i in range(episodes)]:
        layers = next(asked.adapted(group, rate, [steps], options.quiet))[1] if steps else None
        few += asked.scores(options.metrics, group, layers)
    about = {**target.facts, "shots": shots, "episodes": episodes, "steps": steps, "lr": rate, **fit._asdict()}
    about |= {"notes": [*about["notes"], *notes], "chosen": chosen, "seconds": round(time.perf_counter() - began, 2)}
    return FewShot(_over_episodes(zero), _over_episodes(few), about)


def _rate_and_steps(
    target: Target, shots: int, longest: int, options: AdaptOptions, fit: FitOptions
) -> tuple[float, int, dict[str, Any] | None, list[str]]:
    """Rate and number of steps, what was tried to choose them, and notes for a reader."""
    if not isinstance(options.lr, str):
        return options.lr, longest, None, []
    cached = fit._replace(exact=False, views=int(target.config.views or 0)) if fit.exact else fit
    found = choose_steps(target, shots, longest, cached, options.quiet)
    if isinstance(found, str):
        note = (
            f"The papers' rate {PUBLISHED_LR:g} and {longest} steps were taken: nothing could be chosen, since {found}."
        )
        return PUBLISHED_LR, longest, None, [note]
    return found.lr, found.steps, found.to_json(), [found.note]


def _over_episodes(scores: Sequence[Mapping[str, float]]) -> dict[str, EpisodeScore]:
    return {name: over_episodes([each[name] for each in scores]) for name in scores[0]}


def start_boundary(method: Method) -> float:
    """The β that the run's margin loss started from (its module here is freshly built); 1.2 where it has none."""
    return next((float(each.beta.detach().flatten()[0]) for each in method.modules() if isinstance(each, Margin)), BETA)
