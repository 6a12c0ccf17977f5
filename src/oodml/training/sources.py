"""Where a batch's inputs come from: pictures on the device, or features computed once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from oodml.data import Images


class Source(Protocol):
    """Inputs by the image's position in the data set; indices are int64 on the device."""

    def train(self, indices: Tensor, generator: torch.Generator) -> Tensor: ...

    def evaluate(self, indices: Tensor) -> Tensor: ...


class ImageSource:
    """Augmented views for training, the evaluation view otherwise, made on the device.

    Pixels lie channels-last: convolution, batch-norm and pooling are 2-3 times as fast so, on a CPU too.
    """

    def __init__(self, images: Images, crop_scale: tuple[float, float] | None = None) -> None:
        self.images, self.crop_scale = images, crop_scale

    def train(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        images = self.images.train_view(indices, generator, crop_scale=self.crop_scale)
        return images.contiguous(memory_format=torch.channels_last)

    def evaluate(self, indices: Tensor) -> Tensor:
        return self.images.eval_view(indices).contiguous(memory_format=torch.channels_last)


class FeatureSource:
    """Cached pooled features (1 + views, N, D): a random view for training, the first for evaluation."""

    def __init__(self, features: np.ndarray | Tensor, device: torch.device) -> None:
        self.features = torch.as_tensor(features, device=device)

    def train(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        view = torch.randint(len(self.features), indices.shape, generator=generator, device=indices.device)
        return self.features[view, indices]

    def evaluate(self, indices: Tensor) -> Tensor:
        return self.features[0, indices]

    def spread(self, indices: Tensor) -> Tensor:
        """Overall standard deviation of the training images' features, by which the embedder divides."""
        return self.features[:, indices].std()
