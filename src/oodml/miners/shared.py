"""Triplets across classes (Milbich et al., Sharing Matters for Generalization in DML, TPAMI 2020; DiVA, ECCV 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._sampling import choose, uniforms
from oodml._tensors import same_class
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners
from oodml.miners.distance import DistanceWeighted, check_range, log_weights, weights_without

Mode = Literal["full", "standard", "permuted"]


@register_miner("shared", paper="Milbich et al. 2020")
class Shared(PartnerMiner):
    """One triplet per anchor from three mutually different classes: what is shared between classes.

    mode "full": negative and positive drawn by the inverse density of their distance to the anchor, the negative among
    the other classes, then the positive among the classes of neither. "standard": the positive uniformly. "permuted":
    the labels are shuffled over the batch and mined by `distance`, so the classes are random (the code of DiVA and of
    ooDML). `lower` and `upper` as in `distance`.
    """

    def __init__(
        self,
        mode: Mode = "full",
        lower: float = 0.5,
        upper: float | None = 1.4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        if mode not in ("full", "standard", "permuted"):
            raise OodmlError(f"mode must be 'full', 'standard' or 'permuted', got {mode!r}.")
        check_range(lower, upper)
        self.mode, self.lower, self.upper = mode, lower, upper

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        if self.mode == "permuted":
            shuffled = labels[uniforms(len(labels), labels.device, self.generator).argsort()]
            return DistanceWeighted(self.lower, self.upper, self.generator).partners(embeddings, shuffled, distances)
        dim = embeddings.shape[1]
        logs = log_weights(distances, dim, self.lower, self.upper)
        same = same_class(labels, len(distances))
        negative, _ = choose(weights_without(same, logs), self.generator)
        # Not in place: compiled, `same` comes from before a draw by a generator, where the graph breaks.
        taken = same | (labels.index_select(0, negative)[:, None] == labels)
        weights = weights_without(taken, logs) if self.mode == "full" else ~taken
        positive, found = choose(weights, self.generator)
        return Partners(torch.stack([positive, negative]), found)
