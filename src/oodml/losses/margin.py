"""Margin loss (Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml.losses import register_loss
from oodml.losses._base import Tuples, param_group, require
from oodml.losses._distances import Distances
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner

Normaliser = Literal["terms", "triplets"]


@register_loss(
    "margin",
    paper="Wu et al. 2017",
    default_miner="distance",
    has_parameters=True,
    search={"beta": (0.6, 1.2), "margin": (0.1, 0.4), "beta_lr": (1e-5, 1e-3)},
)
class Margin(TupleLoss):
    """Positives within a learnt boundary β and negatives beyond it, each by a margin.

    (Σ [d(a,p) − β_y + margin]₊ + Σ [β_y − d(a,n) + margin]₊) / Z over the mined pairs, d Euclidean on the unit sphere,
    y the anchor's class (revisiting-supplement eq. 10; β 1.2 or .6, margin .2, learning rate of β 5e-4).

    `normaliser` is Z: "terms", the active terms; "triplets", the triplets with an active term, what the authors' code
    comes to. `per_class=False`: one β for all; `learn_beta=False`: β stays as given (few-shot fine-tuning).
    """

    def __init__(
        self,
        margin: float = 0.2,
        beta: float = 1.2,
        beta_lr: float = 5e-4,
        learn_beta: bool = True,
        per_class: bool = True,
        normaliser: Normaliser = "terms",
        num_classes: int | None = None,
        miner: Miner | None = None,
    ) -> None:
        per_class = per_class and learn_beta  # boundaries that stay equal need no classes
        super().__init__(miner, num_classes=require("num_classes", "margin", num_classes) if per_class else None)
        if normaliser not in ("terms", "triplets"):
            raise OodmlError(f"normaliser must be 'terms' or 'triplets', got {normaliser!r}.")
        self.margin, self.beta_lr, self.normaliser = margin, beta_lr, normaliser
        boundary = torch.full((self.num_classes or 1,), float(beta))
        self.beta: Tensor
        if learn_beta:
            self.beta = nn.Parameter(boundary)
        else:
            self.register_buffer("beta", boundary)

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        pairs = self.measured(Distances(embeddings, anchors), labels, tuples)
        inner = outer = self._beta_of(pairs.positive_anchor, labels).to(embeddings.dtype)
        if pairs.negative_anchor is not pairs.positive_anchor:
            outer = self._beta_of(pairs.negative_anchor, labels).to(embeddings.dtype)
        pull = torch.where(pairs.positive_mask, torch.relu(pairs.near - (inner - self.margin)), 0.0)
        push = torch.where(pairs.negative_mask, torch.relu(outer + self.margin - pairs.far), 0.0)
        if self.normaliser == "terms":
            active = (pull > 0).sum() + (push > 0).sum()
        elif pairs.of_triplets:
            active = (pull + push > 0).sum()
        else:
            raise OodmlError("normaliser='triplets' needs triplets (a, p, n); the miner or tuples= gave pairs.")
        return (pull.sum() + push.sum()) / active.clamp_min(1)

    def _beta_of(self, anchors: Tensor, labels: Tensor) -> Tensor:
        """The boundary of each anchor's class, in the shape of their indices; or the one boundary there is, (1,)."""
        if not self.num_classes:
            return self.beta
        return self.beta.index_select(0, labels.index_select(0, anchors.flatten())).view_as(anchors)

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        return param_group(list(self.parameters()), self.beta_lr)
