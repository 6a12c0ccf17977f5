"""Few-shot adaptation: what a handful of labelled images of the test classes is worth (ooDML, section 4.4).

A trained embedder is fine-tuned, last layers only, on the support images of an episode, and asked for the query
images before and after. The run on disk is never changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oodml._errors import OodmlError
from oodml.data import Dataset
from oodml.evaluation import evaluate
from oodml.losses.margin import Margin
from oodml.methods import Method
from oodml.shift import episode_indices
from oodml.training import distributed
from oodml.training.adaptation import Parameters, Support, draw, fine_tune, last_layers, stacked_embedding
from oodml.training.few_shot_result import EpisodeScore, FewShot, over_episodes
from oodml.training.inputs import CachedViews, FreshViews, cached_views
from oodml.training.scoring import check_metrics
from oodml.training.seeds import child_seed
from oodml.training.target import Target, read_target

METRICS = ("recall@1", "map@1000")
LR = 1e-4  # as published: ten times the rate of its runs
BETA = 1.2  # for runs without a margin loss of their own
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
    lr: float = LR,
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

    Frozen backbone; the last linear layer of every head that serves at test time is fine-tuned with margin loss and
    distance mining, β fixed at the value the run started from, Adam without weight decay, batches of two images a
    class; 1,000, 1,500 and 2,000 steps for 2, 5 and 10 shots (in proportion in between) at 1e-4,
    ten times the papers' learning rate. The last step counts: nothing is selected.

    Args:
        run: folder of a finished run; nothing in it is changed (`save_few_shot` stores a result there).
        split: a Split, a file of one, or "default"; None: the run's own. Its episodes are used; where it has none of
            these shots they are drawn on the spot, and a note says so.
        dataset: another data set than the run's, to adapt to (cross-data-set transfer).
        steps, lr, beta, batch_size: replace the values above.
        views: augmented views of every image, computed once, that training draws from beside the evaluation view;
            None: as many as the run has.
        exact: fresh augmentations through the backbone at every step instead, as published; far slower.
        batched: all episodes as one computation; False: one after the other, for the same numbers in more time.
        seed: of batches, mining and augmentation.

    Returns:
        {"zero": {metric: (mean, half width, per episode)}, "few": {...}}, a `FewShot` with `.about` and `.notes`.
    """
    began = time.perf_counter()
    _check(shots, episodes, steps, batch_size, metrics)
    place = distributed.join(device).device
    target = read_target(run, split, dataset, place, quiet).with_episodes(shots, episodes)
    options: dict[str, Any] = {
        "shots": shots,
        "episodes": episodes,
        "steps": round(float(np.interp(shots, SHOTS, STEPS))) if steps is None else steps,
        "lr": lr,
        "beta": start_boundary(target.trained.method) if beta is None else beta,
        "batch_size": batch_size,
        "views": 0 if exact else int(target.config.views or 0) if views is None else views,
        "exact": exact,
        "seed": seed,
    }
    sides = [episode_indices(target.split, target.data, shots, i) for i in range(episodes)]
    source = cached_views(target, [support for support, _ in sides], options["views"], quiet)
    zero = _scores(target, source, None, [query for _, query in sides], metrics)
    few = []
    for group in [range(episodes)] if batched else [[i] for i in range(episodes)]:
        layers = _adapt(target, source, [sides[i][0] for i in group], group, options, quiet)
        few += _scores(target, source, layers, [sides[i][1] for i in group], metrics)
    about = {**target.facts, **options, "seconds": round(time.perf_counter() - began, 2)}
    return FewShot(_over_episodes(zero), _over_episodes(few), about)


def _over_episodes(scores: Sequence[Mapping[str, float]]) -> dict[str, EpisodeScore]:
    return {name: over_episodes([each[name] for each in scores]) for name in scores[0]}


def start_boundary(method: Method) -> float:
    """The β that the run's margin loss started from (its module here is freshly built); 1.2 where it has none."""
    return next((float(each.beta.detach().flatten()[0]) for each in method.modules() if isinstance(each, Margin)), BETA)


def _adapt(
    target: Target,
    source: CachedViews,
    supports: Sequence[np.ndarray],
    numbers: Iterable[int],
    options: Mapping[str, Any],
    quiet: bool,
) -> Parameters:
    """The fine-tuned layers of these episodes, stacked."""
    seeds = [child_seed(options["seed"], "few-shot", options["shots"], number) for number in numbers]
    labelled = [Support(rows, np.unique(target.data.labels[rows], return_inverse=True)[1]) for rows in supports]
    trained = target.trained
    draws = draw(labelled, options["steps"], options["batch_size"], seeds, trained.device)
    views = FreshViews(target) if options["exact"] else source
    return fine_tune(
        stacked_embedding(trained.embedder, trained.method),
        last_layers(trained.embedder),
        views.training(seeds, draws),
        draws,
        options["beta"],
        options["lr"],
        quiet,
    )


@torch.no_grad()
def _scores(
    target: Target,
    source: CachedViews,
    layers: Parameters | None,
    queries: Sequence[np.ndarray],
    metrics: Sequence[str],
) -> list[dict[str, float]]:
    """Scores on the query images of each episode, with its own layers; None: with those of the run."""
    trained, found = target.trained, []
    embed = stacked_embedding(trained.embedder, trained.method)
    start = {name: value[None] for name, value in last_layers(trained.embedder).items()}
    for number, query in enumerate(queries):
        own = start if layers is None else {name: value[number][None] for name, value in layers.items()}
        rows = embed(own, source.evaluation(query)[None])[0]
        scores = evaluate(rows, target.data.labels[query], metrics)
        found.append({name: float(scores[name]) for name in metrics})
    return found


def _check(shots: int, episodes: int, steps: int | None, batch_size: int, metrics: Sequence[str]) -> None:
    for name, value, least in (
        ("shots", shots, 1),
        ("episodes", episodes, 1),
        ("steps", 1 if steps is None else steps, 1),
        ("batch_size", batch_size, 4),
    ):
        if value < least:
            raise OodmlError(f"{name} must be at least {least}, got {value}.")
    check_metrics(metrics)
