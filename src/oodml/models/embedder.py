"""The embedder: backbone, pooling and named heads, for images or for cached features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from oodml._errors import OodmlError
from oodml.models.backbones import Backbone
from oodml.models.heads import Head, make_head


class Pooled(NamedTuple):
    """Pooled features (b, D); `max` and `windows` (b, D · windows) are None unless a head asks for them."""

    avg: Tensor
    max: Tensor | None = None
    windows: Tensor | None = None

    def of(self, pooling: str) -> Tensor:
        """The features a head of that pooling reads: the average, or average plus maximum."""
        if pooling == "avg":
            return self.avg
        if pooling.startswith("windows:"):
            if self.windows is None:
                raise OodmlError("These features have no windows of the feature map: they were pooled before.")
            return self.windows
        if self.max is None:
            raise OodmlError("These features have no maximum: no head of this embedder has 'avg+max' pooling.")
        return self.avg + self.max

    def map(self, function: Callable[[Tensor], Tensor]) -> Pooled:
        return Pooled(*(None if each is None else function(each) for each in self))  # type: ignore[arg-type]


class Outputs(NamedTuple):
    """Pooled features and the raw (not normalised) output of every head."""

    features: Pooled
    heads: dict[str, Tensor]


BACKBONE = "backbone"  # the `part` of the backbone's parameter group


class Embedder(nn.Module):
    """Images (b, 3, h, w) in [0, 1], or cached pooled features (b, D), to `Outputs`.

    Cached features with average and maximum are (b, 2D). `gather` turns the features of one process into those of the
    whole batch. `chunk` limits memory: the backbone computes `chunk` images at a time, and again in the backward pass
    (gradient caching: the loss and gradients of the full batch, the memory of one chunk).
    """

    feature_scale: Tensor

    def __init__(self, backbone: Backbone, heads: Mapping[str, Head], feature_dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_dim = feature_dim
        self.specs = dict(heads)
        self.heads = nn.ModuleDict({name: make_head(head, feature_dim) for name, head in heads.items()})
        self.register_buffer("feature_scale", torch.ones(()))  # cached features are divided by their overall spread
        self.gather: Callable[[Tensor], Tensor] | None = None
        self.chunk: int | None = None
        self.autocast: torch.dtype | None = None
        self.backbone_frozen = False

    @property
    def needs_max(self) -> bool:
        return any(head.pooling == "avg+max" for head in self.specs.values())

    @property
    def window(self) -> tuple[int, int] | None:
        """The windows of the feature map that some head reads."""
        return next((head.window for head in self.specs.values() if head.window), None)

    def forward(self, inputs: Tensor) -> Outputs:
        return self.apply_heads(self.pool(inputs))

    def pool(self, inputs: Tensor) -> Pooled:
        """Pooled features of the whole batch, float32."""
        flat = self._image_features(inputs) if inputs.ndim == 4 else inputs
        if self.gather is not None and self.training:
            flat = self.gather(flat)
        flat = flat / self.feature_scale
        if flat.shape[1] == self.feature_dim:
            return Pooled(flat)
        average, rest = flat[:, : self.feature_dim], flat[:, self.feature_dim :]
        if inputs.ndim == 4 and self.window is not None:
            reach = self.feature_dim * self.needs_max
            return Pooled(average, rest[:, :reach] if reach else None, rest[:, reach:])
        return Pooled(average, rest)

    def apply_heads(self, pooled: Pooled, names: Iterable[str] | None = None) -> Outputs:
        """The heads' raw outputs on given features, of all heads or of those in `names`."""
        chosen = self.heads.keys() if names is None else names
        return Outputs(pooled, {n: self.heads[n](pooled.of(self.specs[n].pooling)) for n in chosen})

    def _image_features(self, images: Tensor) -> Tensor:
        """Backbone and pooling: the average, then the maximum and the windows if a head reads them."""
        with torch.no_grad() if self.backbone_frozen else nullcontext():
            if self.chunk is None or not torch.is_grad_enabled() or self.backbone_frozen:
                return self._pool_maps(images)
            parts = [checkpoint(self._pool_maps, part, use_reentrant=False) for part in images.split(self.chunk)]
            return torch.cat(parts)

    def _pool_maps(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            maps = self.backbone(images)
        # Heads and losses are never computed in half precision.
        exact = maps.dtype if maps.dtype == torch.float64 else torch.float32
        parts = [maps.mean((2, 3), dtype=exact)]
        if self.needs_max:
            parts.append(maps.amax((2, 3)).to(exact))
        if self.window is not None:
            if self.window[0] > maps.shape[2] or self.window[1] > maps.shape[3]:
                raise OodmlError(
                    f"Windows of {self.window[0]} x {self.window[1]} do not fit into feature maps of "
                    f"{maps.shape[2]} x {maps.shape[3]}: choose smaller feature_windows."
                )
            parts.append(F.avg_pool2d(maps.to(exact), self.window).flatten(1))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def test_weights(self, backbone: bool) -> dict[str, Tensor]:
        """The tensors that a trained embedder keeps: those of test-time heads, and of the backbone if asked for."""
        kept = tuple(f"heads.{name}." for name, head in self.specs.items() if head.test)
        wanted = (*kept, "feature_scale", *(("backbone.",) if backbone else ()))
        return {key: value for key, value in self.state_dict().items() if key.startswith(wanted)}

    def param_groups(self, lr: float, weight_decay: float, head_lr: float | None = None) -> list[dict[str, Any]]:
        """Backbone (unless its parameters are frozen) and heads, both with weight decay as in the papers."""
        trained = [p for p in self.backbone.parameters() if p.requires_grad]
        backbone = {"params": trained, "lr": lr, "weight_decay": weight_decay, "part": BACKBONE}
        heads = {"params": [*self.heads.parameters()], "lr": head_lr or lr, "weight_decay": weight_decay}
        return [backbone, heads] if trained else [heads]
