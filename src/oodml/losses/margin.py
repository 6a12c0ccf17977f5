"""Margin loss (Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from oodml._checks import require_not_negative, require_positive
from oodml._errors import OodmlError
from oodml._tensors import distances
from oodml.losses import TupleLoss, register_loss
from oodml.losses.base import Tuples, param_group, require
from oodml.miners import Miner

Normaliser = Literal["terms", "triplets"]


@register_loss(
    "margin",
    paper="Wu et al. 2017",
    has_parameters=True,
    search={"beta": (0.6, 1.2), "margin": (0.1, 0.4), "beta_lr": (1e-5, 1e-3)},
)
class Margin(TupleLoss):
    """Positives within a learned boundary β and negatives beyond it, each by a margin.

    (Σ [d(a,p) − β_y + margin]₊ + Σ [β_y − d(a,n) + margin]₊) / Z over the mined pairs, d Euclidean on the unit sphere,
    y the anchor's class (revisiting-supplement eq. 10; β 1.2 or 0.6, margin 0.2, learning rate of β 5e-4).

    `normaliser` is Z: "terms", the number of terms above 0; "triplets", the number of triplets with such a term, as the
    authors' code does. `per_class=False`: one β for all classes; `learn_beta=False`: β is constant (few-shot
    fine-tuning).
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
        miner: str | dict[str, Any] | Miner = "distance",
        generator: torch.Generator | None = None,
    ) -> None:
        per_class = per_class and learn_beta  # boundaries that are equal and constant need no classes
        classes = require("num_classes", "margin", num_classes) if per_class else None
        super().__init__(miner, generator, num_classes=classes)
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
        d = distances(embeddings, anchors)  # (a, b)
        beta = (self.beta[labels[: len(d)].long(), None] if self.num_classes else self.beta).to(d.dtype)  # (a, 1)
        pull, push = torch.relu(d - beta + self.margin), torch.relu(beta - d + self.margin)
        if self.normaliser == "triplets" and not self.takes_all_triplets(tuples):
            a, p, n, mask = self.triplets(embeddings, labels, tuples, anchors, d)
            terms = (pull[a, p] + push[a, n]) * mask
            return terms.sum() / (terms > 0).sum().clamp_min(1)
        positives, negatives = self.pair_counts(embeddings, labels, tuples, anchors, d)
        active_pull, active_push = positives * (pull > 0), negatives * (push > 0)
        if self.normaliser == "terms":
            active = active_pull.sum() + active_push.sum()
        else:  # a triplet without such a term has an idle positive and an idle negative
            idle = ((positives > 0) & (pull == 0)).sum(1) * ((negatives > 0) & (push == 0)).sum(1)
            active = ((positives > 0).sum(1) * (negatives > 0).sum(1) - idle).sum()
        return ((active_pull * pull).sum() + (active_push * push).sum()) / active.clamp_min(1)

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        return param_group(list(self.parameters()), self.beta_lr)
