"""Manifold mixup: train on mixtures of samples and of their labels (Verma et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oodml._errors import OodmlError, unknown_name
from oodml._sampling import uniforms
from oodml.methods.base import Batch, Context
from oodml.methods.objective import Spec
from oodml.methods.registry import method_spec, register_method
from oodml.methods.wrapper import Wrapper
from oodml.models.embedder import Embedder, Pooled

LAYERS = ("input", "stages", "features")
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

    x', y' are the batch in random order. `layers` names what is mixed: the pooled "features" (the default; with
    train="head" the cached ones), the "input" images, what the backbone gives between its "stages", or several of
    these: each step draws one of the named places among the input, the ends of all stages but the last, and the
    features. Supplement H of Revisiting finds that mixup compresses the spectrum of the embedding and lowers recall on
    unseen classes: a contrast to `rho`, not an improvement.
    """

    quantiles: Tensor

    def __init__(self, base: Spec = "margin", alpha: float = 2.0, layers: str | Sequence[str] = ("features",)) -> None:
        super().__init__(base)
        if not self.mixable:
            raise OodmlError(
                f"mixup mixes the features and labels of a batch, and {method_spec(base)['name']!r} uses more: a "
                "second view, a teacher, a group, a memory of other batches, or mixtures."
            )
        if alpha <= 0:
            raise OodmlError(f"mixup needs alpha > 0, got {alpha}.")
        self.alpha = alpha
        self.layers = (layers,) if isinstance(layers, str) else tuple(layers)
        for layer in self.layers or ("",):
            if layer not in LAYERS:
                raise unknown_name("layer of mixup:", layer, LAYERS)
        self.mixable = False  # a mixture of mixtures has no labels of this form
        self.places = self.layers  # with every stage by itself, once the backbone is known
        self.mixture: Mixture | None = None

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if train == "head" and set(self.layers) - {"features"}:
            raise OodmlError("train='head' has cached features and no images to mix: use layers='features'.")

    def setup(self, context: Context) -> None:
        super().setup(context)
        from scipy.special import betaincinv

        grid = torch.linspace(0, 1, _NODES, dtype=torch.float64)
        self.register_buffer("quantiles", torch.as_tensor(betaincinv(self.alpha, self.alpha, grid.numpy())))

    def connect(self, embedder: Embedder) -> None:
        super().connect(embedder)
        if "stages" not in self.layers:
            return
        ends = embedder.backbone.stages()[:-1]  # after the last, mixing maps is mixing their averages
        if not ends:
            raise OodmlError(
                f"mixup cannot mix between the stages of {embedder.backbone.name!r}, which does not say where they "
                "end: use layers='features' or 'input'."
            )
        names = [f"stage {number + 1}" for number in range(len(ends))]
        for name, end in zip(names, ends, strict=True):
            end.register_forward_hook(partial(_mix_here, self, name))
        self.places = tuple(place for layer in self.layers for place in (names if layer == "stages" else [layer]))

    def draw(self, batch: Batch, layer: str) -> Mixture:
        """λ by the inverse of its distribution function, and a random order.

        Images and maps are mixed within a process, in the same order in every process.
        """
        device, size = batch.labels.device, len(batch.labels)
        place = uniforms(1, device, self.context.generator) * (_NODES - 1)
        below = place.long()
        within = (place - below).to(self.quantiles.dtype)
        share = torch.lerp(self.quantiles[below], self.quantiles[below + 1], within)[0]
        part = size if layer == "features" else len(batch.inputs)
        order = uniforms(part, device, self.context.generator).argsort()
        starts = torch.arange(0, size, part, device=device)
        return Mixture(share.float(), (starts[:, None] + order).flatten())

    def inputs(self, batch: Batch, step: int) -> Tensor:
        generator = self.context.generator
        # The generator is seeded for every batch, and the host knows the seed: a random draw without synchronisation.
        drawn = step if generator is None else generator.initial_seed()
        self.layer = self.places[drawn % len(self.places)]
        mixture = self.mixture = self.draw(batch, self.layer)
        self.part = len(batch.inputs)
        inputs = super().inputs(batch, step)
        return mixture.of(inputs) if self.layer == "input" else inputs

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        assert self.mixture is not None
        mixture, self.mixture = self.mixture, None  # the next pass of the backbone (an evaluation) is not mixed
        share, order = mixture
        if self.layer == "features":
            pooled = pooled.map(mixture.of)
        other = replace(batch, labels=batch.labels[order])
        own = super().features_loss(pooled, batch, embedder, step)
        return share * own + (1 - share) * super().features_loss(pooled, other, embedder, step)


def _mix_here(mixup: Mixup, place: str, stage: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """A hook at the end of a stage: mixes what it gives in the steps that drew this place."""
    if mixup.mixture is None or mixup.layer != place:
        return output
    if len(output) != mixup.part:
        raise OodmlError(
            "mixup between stages mixes a whole batch, which grad_cache cuts in chunks: use one of the two."
        )
    return mixup.mixture.of(output)
