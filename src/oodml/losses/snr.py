"""Signal-to-noise ratio loss (Yuan et al., Signal-to-Noise Ratio: a Robust Distance Metric for DML, CVPR 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._distances import Distances, all_triplets_hinge
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner
from oodml.miners._distances import positives_and_negatives


@register_loss(
    "snr", paper="Yuan et al. 2019", default_miner="distance", search={"margin": (0.05, 0.5), "lam": (0.0, 0.01)}
)
class SNR(TupleLoss):
    """A triplet loss on the ratio of noise to signal, d(a,x) = var(a − x) / var(a).

    Σ [d(a,p) − d(a,n) + margin]₊ / number of active terms + lam · mean |Σ_m a_m| on the unit sphere, var the unbiased
    variance over dimensions (revisiting-supplement eq. 15 prints sums without squares; margin .2, lam .005). 0 where
    no term is active; var(a) is clamped. The authors' code has lam=0 with the miner `distance`.

    With the embeddings centred over their dimensions, var(a − x)·(D − 1) is a squared Euclidean distance.
    """

    def __init__(self, margin: float = 0.2, lam: float = 0.005, miner: Miner | None = None) -> None:
        super().__init__(miner)
        self.margin, self.lam = margin, lam

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        sums = embeddings.sum(1, keepdim=True)
        centred = embeddings - sums / embeddings.shape[1]
        noise = Distances(centred, anchors)
        signal = centred.square().sum(1).clamp_min(1e-8)  # the D − 1 of both variances cancel
        if self.takes_all_triplets(tuples):
            ratios = noise.squared_matrix / signal[:anchors, None]
            total, active, _ = all_triplets_hinge(ratios, *positives_and_negatives(labels, anchors), self.margin)
        else:
            a, p, n, mask = self.triplets(Distances(embeddings, anchors), labels, tuples)
            near, far = noise.squared((a, p), (a, n))
            ratios = (near - far) / signal.index_select(0, a)
            terms = torch.where(mask, torch.relu(ratios + self.margin), 0.0)
            total, active = terms.sum(), (terms > 0).sum()
        return total / active.clamp_min(1) + self.lam * sums[:anchors].abs().mean()
