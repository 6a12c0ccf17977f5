"""Margin loss (Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml.losses import register_loss
from oodml.losses._base import Tuples, param_group, require
from oodml.losses._distances import active_mean, on_sphere
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner
from oodml.miners._checks import require_not_negative, require_positive

Normaliser = Literal["terms", "triplets"]


def _mean_of_triplets(pull: Tensor, positives: Tensor, push: Tensor, negatives: Tensor) -> Tensor:
    """Σ [pull]₊ + Σ [push]₊ over all triplets, by the number of triplets with a term above 0; all (a, b).

    The masks say in how many triplets a pair stands. A triplet without such a term is one of an idle positive and an
    idle negative of its anchor.
    """
    with torch.no_grad():
        near, far = positives > 0, negatives > 0
        pulls, pushes = near & (pull > 0), far & (push > 0)
        every = near.sum(1, dtype=pull.dtype) * far.sum(1)
        idle = (near & ~pulls).sum(1, dtype=pull.dtype) * (far & ~pushes).sum(1)
        terms = (every - idle).sum().clamp_min(1)
    return ((positives * pulls * pull).sum() + (negatives * pushes * push).sum()) / terms


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

    scale_free = True

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
        require_positive(beta=beta)
        require_not_negative(margin=margin, beta_lr=beta_lr)
        self.margin, self.beta_lr, self.normaliser = margin, beta_lr, normaliser
        boundary = torch.full((self.num_classes or 1,), float(beta))
        self.beta: Tensor
        if learn_beta:
            self.beta = nn.Parameter(boundary)
        else:
            self.register_buffer("beta", boundary)

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        pairs = self.measured(on_sphere(embeddings, anchors), labels, tuples)
        inner = outer = self._beta_of(pairs.positive_labels).to(embeddings.dtype)
        if pairs.negative_labels is not pairs.positive_labels:
            outer = self._beta_of(pairs.negative_labels).to(embeddings.dtype)
        pull, push = pairs.near - inner, outer - pairs.far
        by_triplet = self.normaliser == "triplets"
        if pairs.of_triplets:
            return active_mean(torch.stack([pull, push]) + self.margin, pairs.positive_mask, by_column=by_triplet)
        if by_triplet:
            if not self.takes_all_triplets(tuples):
                raise OodmlError("normaliser='triplets' needs triplets (a, p, n); the miner or tuples= gave pairs.")
            return _mean_of_triplets(pull + self.margin, pairs.positive_mask, push + self.margin, pairs.negative_mask)
        counted = torch.cat([pairs.positive_mask.flatten(), pairs.negative_mask.flatten()])
        return active_mean(torch.cat([pull.flatten(), push.flatten()]) + self.margin, counted)

    def _beta_of(self, labels: Tensor) -> Tensor:
        """The boundary of each class, in the shape of the labels; or the one boundary there is, (1,)."""
        return self.beta.index_select(0, labels.flatten().long()).view_as(labels) if self.num_classes else self.beta

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        return param_group(list(self.parameters()), self.beta_lr)
