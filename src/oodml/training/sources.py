"""Where a batch's inputs come from: pictures on the device, or features computed once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodml.data import Images


class Source(Protocol):
    """Inputs by the image's position in the data set; positions are on the host, inputs on the device."""

    def train(self, positions: np.ndarray, generator: torch.Generator) -> Tensor: ...

    def evaluate(self, positions: np.ndarray) -> Tensor: ...


class ImageSource:
    """Augmented views for training, the evaluation view otherwise, made on the device. `size`: their side.

    Pixels lie channels-last: convolution, batch-norm and pooling are 2-3 times as fast so, on a CPU too.
    """

    def __init__(self, images: Images, crop_scale: tuple[float, float] | None = None, size: int | None = None) -> None:
        self.images, self.crop_scale, self.size = images, crop_scale, size

    def train(self, positions: np.ndarray, generator: torch.Generator) -> Tensor:
        views = self.images.train_view(positions, generator, self.crop_scale, self.size)
        return views.contiguous(memory_format=torch.channels_last)

    def evaluate(self, positions: np.ndarray) -> Tensor:
        return self.images.eval_view(positions, self.size).contiguous(memory_format=torch.channels_last)


class FeatureSource:
    """Cached pooled features (1 + views, N, D): a random view for training, the first for evaluation."""

    def __init__(self, features: np.ndarray | Tensor, device: torch.device) -> None:
        self.features = torch.as_tensor(features, device=device)

    def train(self, positions: np.ndarray, generator: torch.Generator) -> Tensor:
        rows = to_device(positions, self.features.device)
        view = torch.randint(len(self.features), rows.shape, generator=generator, device=rows.device)
        return self.features[view, rows]

    def evaluate(self, positions: np.ndarray) -> Tensor:
        return self.features[0, to_device(positions, self.features.device)]

    def spread(self, positions: np.ndarray) -> Tensor:
        """Overall standard deviation of these images' features, by which the embedder divides."""
        return self.features[:, to_device(positions, self.features.device)].std()


def to_device(positions: np.ndarray, device: torch.device) -> Tensor:
    """Positions on the device; pinned memory lets the copy happen without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(positions))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def resized(images: Tensor, side: int) -> Tensor:
    """Square images at another side; as they are where it fits (as `extract_features` does)."""
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True)
