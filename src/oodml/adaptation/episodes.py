"""Few-shot episodes with the features they need: adapt to the support images, score the query images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from oodml.adaptation.fine_tuning import Draws, Parameters, Support, draw, fine_tune, last_layers, stacked_embedding
from oodml.adaptation.target import Target
from oodml.data import Dataset
from oodml.evaluation import evaluate
from oodml.models import extract_features
from oodml.models.embedder import Outputs
from oodml.shift import episode_indices
from oodml.training.data import to_device
from oodml.training.scoring import pooled_features
from oodml.training.seeds import child_seed, reseed

Scores = list[dict[str, float]]  # one per episode
Inputs = Callable[[int], Tensor]  # step -> what the heads read, (E, b, D)


class FitOptions(NamedTuple):
    """How a support set is fitted, apart from the rate and the number of steps."""

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
    options: FitOptions

    @classmethod
    def read(cls, target: Target, shots: int, count: int, options: FitOptions, quiet: bool) -> Episodes:
        """The first `count` episodes of the target's split."""
        sides = [episode_indices(target.split, target.data, shots, i) for i in range(count)]
        source = cached_views(target, [support for support, _ in sides], options.views, quiet)
        return cls(target, shots, sides, source, options)

    def adapted(
        self, numbers: Sequence[int], lr: float, stops: Sequence[int], quiet: bool
    ) -> Iterator[tuple[int, Parameters]]:
        """(steps, fine-tuned layers of these episodes, stacked) at every number of steps in `stops`."""
        trained, options = self.target.trained, self.options
        seeds = [child_seed(options.seed, "few-shot", self.shots, number) for number in numbers]
        labels = self.target.data.labels
        supports = [
            Support(rows, np.unique(labels[rows], return_inverse=True)[1])
            for rows in (self.sides[i][0] for i in numbers)
        ]
        draws = draw(supports, stops[-1], options.batch_size, seeds, trained.device)
        inputs = (FreshViews(self.target) if options.exact else self.source).training(seeds, draws)
        embed, start = stacked_embedding(trained.embedder, trained.method), last_layers(trained.embedder)
        return fine_tune(embed, start, inputs, draws, options.beta, lr, stops, quiet)

    @torch.no_grad()
    def scores(self, metrics: Sequence[str], numbers: Sequence[int], layers: Mapping[str, Tensor] | None) -> Scores:
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


class CachedViews:
    """Pooled features of the frozen backbone, computed once, as one table (rows, D).

    First the evaluation view of the images `seen`, then the augmented views of the images `augmented`, one view after
    the other. Both are ascending positions in the dataset.
    """

    def __init__(self, table: Tensor, seen: np.ndarray, augmented: np.ndarray, views: int) -> None:
        self.table, self.seen, self.augmented, self.views = table, seen, augmented, views

    def evaluation(self, positions: np.ndarray) -> Tensor:
        """The evaluation view of these images, (len(positions), D)."""
        return self.table[to_device(np.searchsorted(self.seen, positions), self.table.device)]

    def training(self, seeds: list[int], draws: Draws) -> Inputs:
        """A random view of every image of every batch, the evaluation view among them, all drawn in advance."""
        shape = (draws.steps, draws.positions.shape[2])
        generators = (reseed(torch.Generator(), seed, "views") for seed in seeds)
        drawn = torch.stack([torch.randint(1 + self.views, shape, generator=each) for each in generators], 1).numpy()
        behind = len(self.seen) + (drawn - 1) * len(self.augmented) + np.searchsorted(self.augmented, draws.positions)
        rows = to_device(np.where(drawn == 0, np.searchsorted(self.seen, draws.positions), behind), self.table.device)
        return lambda step: self.table[rows[step]]


def cached_views(target: Target, supports: Sequence[np.ndarray], views: int, quiet: bool) -> CachedViews:
    """The features that the run's heads read: of its target's test classes, and augmented ones of the support images.

    A run with train="head" has features of the whole dataset in the cache, augmented ones too, so all of them are
    read. For a trained backbone only those of the images needed are computed.
    """
    data = target.data
    if target.config.train == "head":
        every = np.arange(len(data))
        stacked = _features(target, data, views, quiet).reshape((1 + views) * len(data), -1)
        return CachedViews(torch.as_tensor(stacked, device=target.trained.device), every, every, views)
    table = _features(target, data.subset(target.test), 0, quiet)
    union = np.unique(np.concatenate(list(supports))) if views else target.test[:0]
    if views:
        augmented = _features(target, data.subset(union), views, quiet)[1:]
        table = np.concatenate([table, augmented.reshape(-1, table.shape[1])])
    return CachedViews(torch.as_tensor(table, device=target.trained.device), target.test, union, views)


def _features(target: Target, data: Dataset, views: int, quiet: bool) -> np.ndarray:
    embedder = target.trained.embedder
    heads = target.trained.method.heads(embedder.feature_dim).values()
    return extract_features(
        data,
        embedder.backbone,
        views=views,
        size=target.trained.input,
        crop_scale=target.config.crop_scale,
        pooling="avg+max" if any(head.pooling == "avg+max" for head in heads) else "avg",
        device=target.trained.device,
        quiet=quiet,
    )


class FreshViews:
    """Features of augmented views drawn anew at every step, as published: each passes through the frozen backbone."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.chunk = 512 if target.trained.device.type == "cuda" else 128

    def training(self, seeds: list[int], draws: Draws) -> Inputs:
        images, crop_scale, size = self.target.images, self.target.config.crop_scale, self.target.trained.input
        generators = [torch.Generator(images.device) for _ in seeds]

        def inputs(step: int) -> Tensor:
            parts = []
            for seed, generator, positions in zip(seeds, generators, draws.positions[step], strict=True):
                reseed(generator, seed, "augmentation", step)
                parts.append(images.train_view(positions, generator, crop_scale, size))
            return self._features(torch.cat(parts)).view(*draws.positions.shape[1:], -1)

        return inputs

    @torch.no_grad()
    def _features(self, images: Tensor) -> Tensor:
        embedder, device = self.target.trained.embedder, self.target.trained.device
        parts = [pooled_features(Outputs(embedder.pool(part.to(device)), {})) for part in images.split(self.chunk)]
        return torch.cat(parts) * embedder.feature_scale  # the embedder divides by it again
