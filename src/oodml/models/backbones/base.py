"""`Backbone`: images in, feature map out, with its own input normalisation; and the registry of backbones."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oodml._registry import Registry

REGISTRY = Registry("backbone", "oodml.models.backbones", "oodml.backbones", context=("pretrained", "weights", "seed"))
register_backbone = REGISTRY.register
_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Backbone(nn.Module):
    """A network body that takes RGB images in [0, 1] and normalises them itself.

    Normalisation is part of the weights (the same architecture is published with several), so `mean` and `std` are
    buffers and travel with the state dict. `channel_order="bgr"` reverses the channels after normalisation, for
    networks trained on BGR; `mean` and `std` stay in RGB order.

    Attributes:
        name: the name it was made by.
        feature_dim: channels C of the feature map.
        input_size: side of the images it was trained on.
        pretrained: whether trained weights were loaded (then batch-norm statistics are worth freezing).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        *,
        name: str,
        feature_dim: int,
        input_size: int,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        channel_order: str = "rgb",
        pretrained: bool = False,
    ) -> None:
        super().__init__()
        self.body = body
        self.name = name
        self.feature_dim = feature_dim
        self.input_size = input_size
        self.channel_order = channel_order
        self.pretrained = pretrained
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(b, 3, H, W) RGB in [0, 1] -> feature map (b, C, h, w); h = w = 1 where the network pools by itself."""
        normalised = (images - self.mean) / self.std
        if self.channel_order == "bgr":
            normalised = normalised.flip(1)
        return self.body(normalised)

    def stages(self) -> list[nn.Module]:
        """The modules that end its stages, first to last; empty if the network does not name them."""
        if isinstance(self.body, nn.Sequential):
            return list(self.body)
        model: Any = getattr(self.body, "model", None)  # timm's models list where features can be taken
        return [model.get_submodule(stage["module"]) for stage in getattr(model, "feature_info", None) or ()]

    @property
    def weights_id(self) -> str:
        """A hash of the present weights and normalisation: equal exactly when two backbones compute the same."""
        digest = hashlib.sha256(f"{self.name}|{self.channel_order}".encode())
        for key, value in self.state_dict().items():
            data = value.detach().cpu().contiguous()
            digest.update(f"{key}|{data.dtype}|{tuple(data.shape)}".encode())
            digest.update(data.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def freeze_batchnorm(module: nn.Module) -> nn.Module:
    """Freeze the statistics of every batch-norm in `module`, also after `.train()`; scale and shift stay trainable.

    This is the papers' "frozen batch-norm": small batches of few classes would otherwise move the ImageNet statistics.
    Returns `module`.
    """
    for each in module.modules():
        if isinstance(each, _BATCHNORMS):
            each.eval()
            # A partial of a plain function survives deepcopy and pickle, a bound method or a lambda would not.
            each.train = functools.partial(_stay_in_eval, each)  # type: ignore[method-assign, assignment]
    return module


def _stay_in_eval(batchnorm: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(batchnorm, False)


@contextmanager
def own_seed(seed: int) -> Iterator[None]:
    """Torch's initialisers draw from `seed` inside the context; the global random state is restored afterwards.

    Only the CPU generator is seeded (`torch.manual_seed` would also seed those of all GPUs): models are built on the
    CPU and then moved, so a seed gives the same weights on every device.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
