"""Manifold mixup: train on mixtures of samples and of their labels (Verma et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml.methods import method_spec, register_method
from oodml.methods._base import Batch, Context
from oodml.methods._objective import Spec
from oodml.methods._wrapper import Wrapper
from oodml.miners._sampling import uniforms
from oodml.models.embedder import Embedder, Pooled

LAYERS = ("input", "features")
_NODES = 4097  # of the table of Beta's quantiles


class Mixture(NamedTuple):
    """λ, a scalar, and the order (b,) in which the batch is mixed into itself."""

    share: Tensor
    order: Tensor

    def of(self, x: Tensor) -> Tensor:
        """λ x_i + (1 − λ) x_order(i); a part of the batch is mixed in the order of its own length."""
        return torch.lerp(x.index_select(0, self.order[: len(x)]), x, self.share.to(x.dtype))


@register_method("mixup", paper="Verma et al. 2018; Roth et al. 2020, supplement H", search={"alpha": (0.2, 4.0)})
class Mixup(Wrapper):
    """Any method on mixtures of two samples, each of which has a share in both classes.

        L = λ L_base(x^λ, y) + (1 − λ) L_base(x^λ, y'),    x^λ = λ x + (1 − λ) x',    λ ~ Beta(α, α) for each batch

    x', y' are the batch in random order. `layers` says what is mixed: the pooled "features" (the default; with
    train="head" the cached ones), the "input" pictures, or both in turn, step by step. Revisiting's supplement H finds
    that it compresses the spectrum of the embedding and lowers recall on unseen classes: a contrast to `rho`, not an
    improvement.
    """

    quantiles: Tensor

    def __init__(self, base: Spec = "margin", alpha: float = 2.0, layers: str | Sequence[str] = ("features",)) -> None:
        super().__init__(base)
        if not self.mixable:
            raise OodmlError(
                f"mixup mixes features and labels, and {method_spec(base)['name']!r} looks at more of a picture: "
                "its second view, its teacher or its group."
            )
        if alpha <= 0:
            raise OodmlError(f"mixup needs alpha > 0, got {alpha}.")
        self.alpha = alpha
        self.layers = (layers,) if isinstance(layers, str) else tuple(layers)
        for layer in self.layers or ("",):
            if layer not in LAYERS:
                raise unknown_name("layer of mixup:", layer, LAYERS)
        self.mixable = False  # a mixture of mixtures has no labels of this form

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if train == "head" and "input" in self.layers:
            raise OodmlError("With train='head' there are cached features and no pictures to mix: layers='features'.")

    def describe(self) -> str:
        return "The method 'mixup'"

    def setup(self, context: Context) -> None:
        super().setup(context)
        from scipy.special import betaincinv

        grid = torch.linspace(0, 1, _NODES, dtype=torch.float64)
        self.register_buffer("quantiles", torch.as_tensor(betaincinv(self.alpha, self.alpha, grid.numpy())))

    def draw(self, batch: Batch, layer: str) -> Mixture:
        """λ by the inverse of its distribution function, and a random order.

        Pictures stay with their process, so their order is one of a process's share, the same in every share.
        """
        device, size = batch.labels.device, len(batch.labels)
        place = uniforms(1, device, self.context.generator) * (_NODES - 1)
        below = place.long()
        within = (place - below).to(self.quantiles.dtype)
        share = torch.lerp(self.quantiles[below], self.quantiles[below + 1], within)[0]
        part = len(batch.inputs) if layer == "input" else size
        order = uniforms(part, device, self.context.generator).argsort()
        starts = torch.arange(0, size, part, device=device)
        return Mixture(share.float(), (starts[:, None] + order).flatten())

    def inputs(self, batch: Batch, step: int) -> Tensor:
        self.layer = self.layers[step % len(self.layers)]
        self.mixture = self.draw(batch, self.layer)
        inputs = super().inputs(batch, step)
        return self.mixture.of(inputs) if self.layer == "input" else inputs

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        share, order = self.mixture
        if self.layer == "features":
            pooled = pooled.map(self.mixture.of)
        other = replace(batch, labels=batch.labels[order])
        own = super().features_loss(pooled, batch, embedder, step)
        return share * own + (1 - share) * super().features_loss(pooled, other, embedder, step)
