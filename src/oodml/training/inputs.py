"""What the heads of a run read when only they are used: pooled features of a frozen backbone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from oodml.data import Dataset
from oodml.models import extract_features
from oodml.models.embedder import Outputs
from oodml.training.adaptation import Draws, Inputs
from oodml.training.scoring import pooled_reader
from oodml.training.seeds import reseed
from oodml.training.sources import to_device
from oodml.training.target import Target


class CachedViews:
    """Features computed once, as one table (rows, D): the evaluation view of the images `seen`, behind it augmented
    views of the images `augmented`, one view after the other. Both are ascending positions in the data set.
    """

    def __init__(self, table: Tensor, seen: np.ndarray, augmented: np.ndarray, views: int) -> None:
        self.table, self.seen, self.augmented, self.views = table, seen, augmented, views

    def evaluation(self, positions: np.ndarray) -> Tensor:
        """The evaluation view of these images, (len(positions), D)."""
        return self.table[to_device(np.searchsorted(self.seen, positions), self.table.device)]

    def training(self, seeds: list[int], draws: Draws) -> Inputs:
        """A random view of every image of every batch, the evaluation view among them, all chosen beforehand."""
        shape = (draws.steps, draws.positions.shape[2])
        generators = (reseed(torch.Generator(), seed, "views") for seed in seeds)
        drawn = torch.stack([torch.randint(1 + self.views, shape, generator=each) for each in generators], 1).numpy()
        behind = len(self.seen) + (drawn - 1) * len(self.augmented) + np.searchsorted(self.augmented, draws.positions)
        rows = to_device(np.where(drawn == 0, np.searchsorted(self.seen, draws.positions), behind), self.table.device)

        def inputs(step: int) -> Tensor:
            return self.table[rows[step]]

        return inputs


def cached_views(target: Target, supports: Sequence[np.ndarray], views: int, quiet: bool) -> CachedViews:
    """The features the run's heads read: of its target's test classes, and augmented ones of the support images.

    A run that trained heads alone has features of the whole data set in the cache, augmented ones too, where they
    are found again; a backbone that was trained is asked for no image that is not needed.
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
    """Features of augmented views drawn anew at every step, as published: the frozen backbone sees every image."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.chunk = 512 if target.trained.device.type == "cuda" else 128

    def training(self, seeds: list[int], draws: Draws) -> Inputs:
        generators = [torch.Generator(self.target.images.device) for _ in seeds]

        def inputs(step: int) -> Tensor:
            parts = []
            for seed, generator, positions in zip(seeds, generators, draws.positions[step], strict=True):
                reseed(generator, seed, "augmentation", step)
                parts.append(
                    self.target.images.train_view(
                        positions, generator, self.target.config.crop_scale, self.target.trained.input
                    )
                )
            return self._features(torch.cat(parts)).view(*draws.positions.shape[1:], -1)

        return inputs

    @torch.no_grad()
    def _features(self, images: Tensor) -> Tensor:
        embedder = self.target.trained.embedder
        parts = [
            pooled_reader(Outputs(embedder.pool(p.to(self.target.trained.device)), {}))
            for p in images.split(self.chunk)
        ]
        return torch.cat(parts) * embedder.feature_scale  # the embedder divides by it again
