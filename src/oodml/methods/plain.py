"""Any loss with any miner on one linear head, and plain regularisers for comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._errors import OodmlError
from oodml.methods.base import Batch, Context, Method
from oodml.methods.objective import Spec, as_dict, check_objective, make_objective, own_groups, remembers
from oodml.methods.registry import register_method
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.heads import Head

HEAD = "embedding"


@register_method("plain")
class Plain(Method):
    """One loss on one linear head: L(φ(x), y).

    `loss` is a loss's name or a dict of its options; `miner` replaces its default miner. The regularisers are those
    of Milbich et al. 2020, "Sharing Matters", table 6: `dropout` between the features and the embedding,
    `input_noise` and `output_noise`, the standard deviation of Gaussian noise on images in [0, 1] and on the
    embedding (before normalisation, relative to its mean length).
    """

    def __init__(
        self,
        loss: Spec = "margin",
        miner: Any = None,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        output_noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.spec: dict[str, Any] = as_dict(loss)
        if miner is not None:
            self.spec["miner"] = miner
        objective = check_objective(self.spec)
        self.spherical = objective.normalise
        self.mixable = not remembers(objective)
        if not 0 <= dropout < 1:
            raise OodmlError(f"dropout is a share in [0, 1), got {dropout}.")
        for name, value in {"input_noise": input_noise, "output_noise": output_noise}.items():
            if value < 0:
                raise OodmlError(f"{name} is a standard deviation and cannot be negative, got {value}.")
        self.dropout, self.input_noise, self.output_noise = dropout, input_noise, output_noise

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if train == "head" and self.input_noise:
            raise OodmlError(
                "input_noise acts on images, and train='head' reads cached features: use train='all', "
                "or dropout or output_noise."
            )

    def heads(self, feature_dim: int) -> dict[str, Head]:
        return {HEAD: Head(self.context.embedding_dim)}

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.objective = make_objective(self.spec, context)

    def inputs(self, batch: Batch, step: int) -> Tensor:
        if not self.input_noise:
            return batch.inputs
        return batch.inputs + self.input_noise * self._normal(batch.inputs)

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        if self.dropout:
            pooled = pooled.map(self._drop)
        embeddings = embedder.apply_heads(pooled, [HEAD]).heads[HEAD]
        if self.output_noise:
            length = embeddings.detach().norm(dim=1).mean() / embeddings.shape[1] ** 0.5
            embeddings = embeddings + self.output_noise * length * self._normal(embeddings)
        return self.objective(embeddings, batch.labels)

    def test_embedding(self, outputs: Outputs) -> Tensor:
        embeddings = outputs.heads[HEAD]
        return F.normalize(embeddings, dim=-1) if self.spherical else embeddings

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        return own_groups(self.objective, base_lr)

    def _drop(self, features: Tensor) -> Tensor:
        keep = torch.empty_like(features).bernoulli_(1 - self.dropout, generator=self.context.generator)
        return features * keep / (1 - self.dropout)

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self.context.generator)
