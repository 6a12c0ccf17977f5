"""What the heads of a run read when only they are used: pooled features of a frozen backbone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from oodml.models import extract_features
from oodml.models.embedder import Outputs
from oodml.training.adaptation import Draws, Inputs
from oodml.training.scoring import pooled_reader
from oodml.training.seeds import reseed
from oodml.training.sources import to_device
from oodml.training.target import Target


class CachedViews:
    """Features (1 + views, n, D) of some images of a data set, computed once: the evaluation view, then augmented ones.

    `positions` (n,), ascending, says which images they are.
    """

    def __init__(self, features: Tensor, positions: np.ndarray) -> None:
        self.features, self.positions = features, positions

    def evaluation(self, positions: np.ndarray) -> Tensor:
        """The evaluation view of these images, (len(positions), D)."""
        return self.features[0, self._rows(positions)]

    def training(self, seeds: list[int], draws: Draws) -> Inputs:
        """A random view of every image of every batch, chosen beforehand."""
        views, images, dim = self.features.shape
        shape = (draws.steps, draws.positions.shape[2])
        generators = (reseed(torch.Generator(), seed, "views") for seed in seeds)
        drawn = torch.stack([torch.randint(views, shape, generator=each) for each in generators], 1)
        table = self.features.view(views * images, dim)
        places = drawn.to(table.device) * images + self._rows(draws.positions)

        def inputs(step: int) -> Tensor:
            return table[places[step]]

        return inputs

    def _rows(self, positions: np.ndarray) -> Tensor:
        return to_device(np.searchsorted(self.positions, positions), self.features.device)


def cached_views(target: Target, views: int, quiet: bool) -> CachedViews:
    """The features the run's heads read, of its target's test classes at least.

    A run that trained heads alone has its features of the whole data set in the cache, where they are found again; a
    backbone that was trained is asked for the test classes only.
    """
    data, embedder, config = target.data, target.trained.embedder, target.config
    frozen = config.train == "head"
    positions = np.arange(len(data)) if frozen else target.test
    heads = target.trained.method.heads(embedder.feature_dim).values()
    features = extract_features(
        data if frozen else data.subset(positions),
        embedder.backbone,
        views=views,
        size=target.trained.input,
        crop_scale=config.crop_scale,
        pooling="avg+max" if any(head.pooling == "avg+max" for head in heads) else "avg",
        device=target.trained.device,
        quiet=quiet,
    )
    stacked = features if features.ndim == 3 else features[None]
    return CachedViews(torch.as_tensor(stacked, device=target.trained.device), positions)


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
