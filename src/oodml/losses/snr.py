"""Signal-to-noise ratio loss (Yuan et al., Signal-to-Noise Ratio: a Robust Distance Metric for DML, CVPR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_not_negative
from oodml._tensors import masked_mean, squared_distances
from oodml.losses import TupleLoss, register_loss
from oodml.losses.base import Tuples
from oodml.losses.tuples import all_triplets_mean
from oodml.miners import Miner


def relative_noise(embeddings: Tensor, anchors: int | None = None) -> Tensor:
    """var(x_i − x_j) / var(x_i) over the dimensions, of anchors and all rows, (b, d) -> (a, b); var(x_i) is clamped."""
    centred = embeddings - embeddings.mean(1, keepdim=True)
    signal = centred[:anchors].square().sum(1, keepdim=True)
    return squared_distances(centred, anchors) / signal.clamp_min(1e-8)


@register_loss("snr", paper="Yuan et al. 2019", search={"margin": (0.05, 0.5), "lam": (0.0, 0.01)})
class SNR(TupleLoss):
    """A triplet loss on the ratio of noise to signal, d(a,x) = var(a − x) / var(a).

    Σ [d(a,p) − d(a,n) + margin]₊ / number of active terms + lam · mean |Σ_m a_m| on the unit sphere, var the unbiased
    variance over dimensions (revisiting-supplement eq. 15 prints sums without squares; margin 0.2, lam 0.005). 0 if
    no term is active; var(a) is clamped. The authors' code has lam=0 with the miner `distance`.
    """

    needs_triplets = True

    def __init__(
        self,
        margin: float = 0.2,
        lam: float = 0.005,
        miner: str | dict[str, Any] | Miner = "distance",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_not_negative(margin=margin, lam=lam)
        self.margin, self.lam = margin, lam

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        d = relative_noise(embeddings, anchors)
        penalty = self.lam * embeddings[:anchors].sum(1).abs().mean()
        if self.takes_all_triplets(tuples):
            return all_triplets_mean(d, labels, self.margin, of_active=True) + penalty
        a, p, n, mask = self.triplets(embeddings, labels, tuples, anchors)
        excess = d[a, p] - d[a, n] + self.margin
        return masked_mean(torch.relu(excess), mask & (excess > 0)) + penalty
