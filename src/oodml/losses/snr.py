"""Signal-to-noise ratio loss (Yuan et al., Signal-to-Noise Ratio: a Robust Distance Metric for DML, CVPR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._all_triplets import all_triplets_mean
from oodml.losses._base import Tuples
from oodml.losses._distances import Distances, active_mean
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner
from oodml.miners._autograd import first_order
from oodml.miners._checks import require_not_negative
from oodml.miners._distances import diagonal

_SMALLEST = 1e-8  # ‖c‖² that noise is divided by


class _RelativeNoise(torch.autograd.Function):
    """‖c_i − c_j‖² / ‖c_i‖² − 1 of anchors and references (b, d) centred over their dimensions, (a, b).

    With the products P = c cᵀ and n their diagonal, that is (n_j − 2P_ij) / n_i.
    """

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, references: Tensor) -> Tensor:
        x = torch.sub(references, references.sum(1, keepdim=True), alpha=1 / references.shape[1])
        products = x[: len(anchors)] @ x.T
        squares = diagonal(products)
        if len(anchors) < len(x):
            squares = torch.cat([squares, x[len(anchors) :].square().sum(1)])
        signal = squares[: len(anchors), None].clamp_min(_SMALLEST)
        ratios = torch.sub(squares, products, alpha=2) / signal  # not in place: see `_Gram` and its neighbours
        ctx.save_for_backward(x, signal, ratios)
        return ratios

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, signal, ratios = ctx.saved_tensors
        a = len(signal)
        # The gradient combines rows that are centred, so centring them in its turn would change nothing.
        weights = gradient / signal
        moves = (signal > _SMALLEST)[:, 0]  # a signal that was clamped stands still
        along = weights[:, :a].sum(0) - (weights * ratios).sum(1) * moves
        mirrored = weights[:, :a].T
        if a == len(x):
            weights = weights + mirrored
            weights.diagonal().sub_(along)
            return (weights @ x).mul_(-2), None
        pulled = torch.addmm(weights @ x, mirrored, x[:a]).addcmul_(along[:, None], x[:a], value=-1)
        return pulled.mul_(-2), None


def relative_noise(embeddings: Tensor, anchors: int | None = None) -> Tensor:
    """var(x_i − x_j) / var(x_i) − 1 over dimensions, of the first `anchors` rows and all rows, (b, d) -> (a, b).

    Rows after the anchors count as constants; var(x_i) is clamped.
    """
    return _RelativeNoise.apply(embeddings if anchors is None else embeddings[:anchors], embeddings.detach())


@register_loss(
    "snr", paper="Yuan et al. 2019", default_miner="distance", search={"margin": (0.05, 0.5), "lam": (0.0, 0.01)}
)
class SNR(TupleLoss):
    """A triplet loss on the ratio of noise to signal, d(a,x) = var(a − x) / var(a).

    Σ [d(a,p) − d(a,n) + margin]₊ / number of active terms + lam · mean |Σ_m a_m| on the unit sphere, var the unbiased
    variance over dimensions (revisiting-supplement eq. 15 prints sums without squares; margin .2, lam .005). 0 where
    no term is active; var(a) is clamped. The authors' code has lam=0 with the miner `distance`.
    """

    needs_triplets = True

    def __init__(self, margin: float = 0.2, lam: float = 0.005, miner: Miner | None = None) -> None:
        super().__init__(miner)
        require_not_negative(margin=margin, lam=lam)
        self.margin, self.lam = margin, lam

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        ratios = relative_noise(embeddings, anchors)
        if self.takes_all_triplets(tuples):
            value = all_triplets_mean(ratios, labels, self.margin, of_active=True)
        else:
            near, far, mask = self.read_triplets(Distances(embeddings, anchors, unit=True), labels, tuples, ratios)
            value = active_mean(near - far + self.margin, mask)
        if self.lam == 0:
            return value
        sums = (embeddings if anchors is None else embeddings[:anchors]).sum(1)
        return torch.add(value, torch.linalg.vector_norm(sums, 1), alpha=self.lam / len(sums))
