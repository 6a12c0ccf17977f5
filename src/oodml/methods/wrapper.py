"""The base of methods that wrap another one: every call goes to the inner method unless a subclass overrides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.methods.base import Batch, Context, Method
from oodml.methods.objective import Spec
from oodml.methods.registry import make_method, method_spec
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.heads import Head


class Wrapper(Method):
    """Shares one pass of the backbone with `inner`, the method or loss that `base` names."""

    def __init__(self, base: Spec) -> None:
        super().__init__()
        self.inner = make_method(base)
        if type(self.inner).features_loss is Method.features_loss:
            raise OodmlError(
                f"{self.describe()} shares the features of its base, and {method_spec(base)['name']!r} cannot be "
                "wrapped: it overrides loss instead of features_loss."
            )
        self.batches_per_step = self.inner.batches_per_step
        self.needs_images = self.inner.needs_images
        self.mixable = self.inner.mixable

    def check(self, embedding_dim: int, train: str) -> None:
        self.inner.check(embedding_dim, train)

    def heads(self, feature_dim: int) -> dict[str, Head]:
        return self.inner.heads(feature_dim)

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.inner.setup(context)

    def connect(self, embedder: Embedder) -> None:
        self.inner.connect(embedder)

    def batch_labels(self, turn: int) -> Tensor | None:
        return self.inner.batch_labels(turn)

    def inputs(self, batch: Batch, step: int) -> Tensor:
        return self.inner.inputs(batch, step)

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        return self.inner.features_loss(pooled, batch, embedder, step)

    def compile_parts(self) -> None:
        self.inner.compile_parts()

    def test_embedding(self, outputs: Outputs) -> Tensor:
        return self.inner.test_embedding(outputs)

    def watched(self, outputs: Outputs) -> dict[str, Tensor]:
        return self.inner.watched(outputs)

    def facts(self) -> dict[str, float]:
        return self.inner.facts()

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        return self.inner.param_groups(base_lr)

    def extra_optimisers(self) -> list[torch.optim.Optimizer]:
        return self.inner.extra_optimisers()

    def on_epoch_start(self, epoch: int, embedder: Embedder, features: Callable[[], tuple[Pooled, Tensor]]) -> None:
        self.inner.on_epoch_start(epoch, embedder, features)

    def after_step(self, embedder: Embedder, step: int) -> None:
        self.inner.after_step(embedder, step)
