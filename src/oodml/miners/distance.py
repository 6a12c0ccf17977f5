"""Distance-weighted mining (Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oodml._checks import require_finite
from oodml._errors import OodmlError
from oodml._tensors import same_class
from oodml.miners import register_miner
from oodml.miners.base import PartnerMiner, Partners, choose_partners

_LARGEST = 4 * (1 - 1e-6)  # of d²: opposite points (d² = 4) have a density of 0 and would have an infinite weight
_LAST_RESORT = -1e30  # a log-weight that counts only in a row without larger ones


def log_inverse_density(distances: Tensor, dim: int, lower: float = 0.5) -> Tensor:
    """log 1/q(d) up to a constant, q(d) ∝ d^(D−2) (1 − d²/4)^((D−3)/2) being the density of distances on the sphere
    in D dimensions; d is clamped at `lower`, so that the nearest pairs do not take all the weight, and just below 2.
    """
    squared = distances.square().clamp_(lower**2, _LARGEST)
    return squared.log().mul_(1 - dim / 2).sub_((squared * -0.25).log1p_(), alpha=(dim - 3) / 2)


def distance_weights(distances: Tensor, excluded: Tensor, dim: int, lower: float, upper: float | None) -> Tensor:
    """The weights of each anchor's partners (a, b), which sum to 1; NaN in a row all of which is `excluded`.

    Partners beyond `upper` are excluded too; a row that has none within it takes those not `excluded` uniformly.
    """
    return weights_without(excluded, log_weights(distances, dim, lower, upper))


def log_weights(distances: Tensor, dim: int, lower: float, upper: float | None) -> Tensor:
    """log 1/q(d), and a tiny weight beyond `upper`."""
    logs = log_inverse_density(distances, dim, lower)
    return logs if upper is None else torch.where(distances > upper, _LAST_RESORT, logs)


def weights_without(excluded: Tensor, logs: Tensor) -> Tensor:
    """The weights of the partners that are not `excluded`, which sum to 1."""
    return torch.where(excluded, -torch.inf, logs).softmax(1)


def check_range(lower: float, upper: float | None) -> None:
    require_finite(lower=lower)
    if upper is not None and upper != math.inf:
        require_finite(upper=upper)
    if not 0 < lower <= 2 or (upper is not None and not lower <= upper):
        raise OodmlError(f"Expected 0 < lower <= 2 and lower <= upper (or upper=None), got {lower=}, {upper=}.")


@register_miner("distance", paper="Wu et al. 2017")
class DistanceWeighted(PartnerMiner):
    """One triplet per anchor: a random positive, and a negative drawn by the inverse density of its distance.

    P(n | a) ∝ 1 / q(max(d(a,n), lower)), q(d) ∝ d^(D−2) (1 − d²/4)^((D−3)/2): every distance is equally likely.
    Negatives beyond `upper` are excluded, as printed (None: no limit, as in the authors' code); an anchor without a
    negative within `upper` draws uniformly among its negatives.
    """

    uniform_positives = True

    def __init__(self, lower: float = 0.5, upper: float | None = 1.4, generator: torch.Generator | None = None) -> None:
        super().__init__(generator)
        check_range(lower, upper)
        self.lower, self.upper = lower, upper

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        same = same_class(labels, len(distances))
        weights = distance_weights(distances, same, embeddings.shape[1], self.lower, self.upper)
        return choose_partners(same.fill_diagonal_(False), weights, self.generator)
