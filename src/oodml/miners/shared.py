"""Triplets across classes (Milbich et al., Sharing Matters for Generalization in DML, TPAMI 2020; DiVA, ECCV 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners import register_miner
from oodml.miners._base import TripletMiner, Triplets
from oodml.miners._distances import same_class
from oodml.miners._sampling import choose, uniforms
from oodml.miners.distance import DistanceWeighted, check_range, distance_weights

Mode = Literal["full", "standard", "permuted"]


@register_miner("shared", paper="Milbich et al. 2020")
class Shared(TripletMiner):
    """One triplet an anchor from three mutually different classes: what is shared between classes.

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

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        if self.mode == "permuted":
            shuffled = labels[uniforms(len(labels), labels.device, self.generator).argsort()]
            return DistanceWeighted(self.lower, self.upper, self.generator).mine(embeddings, shuffled, distances)
        dim = embeddings.shape[1]
        same = same_class(labels, len(distances))
        negative, _ = choose(distance_weights(distances, same, dim, self.lower, self.upper), self.generator)
        same = same | (labels[negative][:, None] == labels)  # not in place: Inductor cannot compile that here
        by_distance = self.mode == "full"
        weights = distance_weights(distances, same, dim, self.lower, self.upper) if by_distance else ~same
        positive, found = choose(weights, self.generator)
        return Triplets(torch.arange(len(distances), device=labels.device), positive, negative, found)
