"""Few-shot episodes of one target with the features they need: adapt to the supports, score the queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from oodml.evaluation import evaluate
from oodml.shift import episode_indices
from oodml.training.adaptation import Parameters, Support, draw, fine_tune, last_layers, stacked_embedding
from oodml.training.inputs import CachedViews, FreshViews, cached_views
from oodml.training.seeds import child_seed
from oodml.training.target import Target

Scores = list[dict[str, float]]  # one an episode


class Way(NamedTuple):
    """How a support set is fitted, whatever the rate and the number of steps."""

    beta: float
    batch_size: int
    views: int  # augmented ones computed once
    exact: bool  # fresh augmentations instead
    seed: int


@dataclass(frozen=True)
class Episodes:
    """`sides`: positions of the support and of the query images of every episode."""

    target: Target
    shots: int
    sides: Sequence[tuple[np.ndarray, np.ndarray]]
    source: CachedViews
    way: Way

    @classmethod
    def read(cls, target: Target, shots: int, count: int, way: Way, quiet: bool) -> Episodes:
        """The first `count` episodes of the target's split."""
        sides = [episode_indices(target.split, target.data, shots, i) for i in range(count)]
        source = cached_views(target, [support for support, _ in sides], way.views, quiet)
        return cls(target, shots, sides, source, way)

    def adapted(
        self, numbers: Sequence[int], lr: float, stops: Sequence[int], quiet: bool
    ) -> Iterator[tuple[int, Parameters]]:
        """(steps, fine-tuned layers of these episodes, stacked) at every number of steps in `stops`."""
        trained, way = self.target.trained, self.way
        seeds = [child_seed(way.seed, "few-shot", self.shots, number) for number in numbers]
        labels = self.target.data.labels
        supports = [
            Support(rows, np.unique(labels[rows], return_inverse=True)[1])
            for rows in (self.sides[i][0] for i in numbers)
        ]
        draws = draw(supports, stops[-1], way.batch_size, seeds, trained.device)
        inputs = (FreshViews(self.target) if way.exact else self.source).training(seeds, draws)
        embed, start = stacked_embedding(trained.embedder, trained.method), last_layers(trained.embedder)
        return fine_tune(embed, start, inputs, draws, way.beta, lr, stops, quiet)

    @torch.no_grad()
    def scores(
        self, metrics: Sequence[str], numbers: Sequence[int], layers: Mapping[str, torch.Tensor] | None
    ) -> Scores:
        """Scores on the query images of each of these episodes, with its own layers; None: with those of the run."""
        trained, found = self.target.trained, []
        embed = stacked_embedding(trained.embedder, trained.method)
        start = {name: value[None] for name, value in last_layers(trained.embedder).items()}
        for place, number in enumerate(numbers):
            own = start if layers is None else {name: value[place][None] for name, value in layers.items()}
            query = self.sides[number][1]
            rows = embed(own, self.source.evaluation(query)[None])[0]
            scores = evaluate(rows, self.target.data.labels[query], metrics)
            found.append({name: float(scores[name]) for name in metrics})
        return found
