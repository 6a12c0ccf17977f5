"""SoftTriple: softmax over classes that have several centres each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._proxies import PaperRate, ProxyLoss
from oodml.losses.cosface import cosface
from oodml.miners._autograd import first_order
from oodml.miners._checks import require_not_negative, require_positive, require_whole


def softtriple(cosines: Tensor, labels: Tensor, scale: float, gamma: float, margin: float) -> Tensor:
    """Cross-entropy of scale · (S − margin·[own class]) of cosines (b, K, C) with K centres a class."""
    similarities = ((cosines / gamma).softmax(1) * cosines).sum(1)
    return cosface(similarities, labels, scale, margin)


class _CentreSpread(torch.autograd.Function):
    """Σ_c Σ_{k<k'} √(2.00001 − 2ψᵀψ') of unit centres (C, K, d)."""

    @staticmethod
    def forward(ctx: Any, centres: Tensor) -> Tensor:
        distances = torch.rsub(centres @ centres.mT, 2.00001, alpha=2).sqrt_()
        ctx.save_for_backward(centres, distances)
        return distances.triu(1).sum()

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        centres, distances = ctx.saved_tensors
        inverse = -gradient / distances
        inverse.diagonal(dim1=1, dim2=2).zero_()
        return inverse @ centres


def centre_spread(centres: Tensor) -> Tensor:
    """Σ_c Σ_{k<k'} √(2.00001 − 2ψᵀψ') / (C·K·(K−1)) of unit centres (K, C, d): small where centres have merged."""
    per_class, num_classes, _ = centres.shape
    return _CentreSpread.apply(centres.transpose(0, 1)) / (num_classes * per_class * (per_class - 1))


@register_loss(
    "softtriple",
    paper="Qian et al. 2019",
    has_parameters=True,
    search={"scale": (4.0, 32.0), "gamma": (0.02, 0.5), "margin": (0.0, 0.1), "tau": (0.0, 0.5), "lr": (1e-5, 5e-2)},
)
class SoftTriple(ProxyLoss):
    """Softmax over classes that have several centres each.

    L = −1/b Σᵢ log e^{λ(S_{i,yᵢ} − δ)} / (e^{λ(S_{i,yᵢ} − δ)} + Σ_{c≠yᵢ} e^{λS_{i,c}}) + τ·R,
    S_{i,c} = Σ_k softmax_k(φᵢᵀψ_{c,k}/γ) · φᵢᵀψ_{c,k},   R = Σ_c Σ_{k<k'} √(2.00001 − 2ψ_{c,k}ᵀψ_{c,k'}) / (C·K·(K−1))

    φ (b, d) and ψ (K, C, d) on the unit sphere. R pulls the centres of a class together, so that only those that the
    data needs stay apart.

    Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019. K = 2, λ = 8, γ = .1,
    δ = .01, τ = .2 and the centres' learning rate 1e-5 as in Roth et al., ICML 2020, A.1, whose eq. 16 drops the
    factor φᵀψ (and is then constantly 1). Qian et al. use K = 10, λ = 20 for CUB and CARS.

    For classes of several looks (front and back, male and female); with one centre it is `cosface`.

    Args:
        centres: K, centres a class.
        scale: λ.
        gamma: γ, temperature among the centres of a class.
        margin: δ.
        tau: τ, weight of R.
        lr: learning rate of the centres; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        centres: int = 2,
        scale: float = 8.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        lr: float = PaperRate(1e-5),
    ) -> None:
        require_whole(1, centres=centres)
        require_positive(scale=scale, gamma=gamma)
        require_not_negative(margin=margin, tau=tau)
        super().__init__("softtriple", num_classes, embedding_dim, generator, lr=lr, init="uniform", per_class=centres)
        self.centres, self.scale, self.margin, self.tau = centres, scale, margin, tau
        self.gamma = gamma

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        return softtriple(cosines.unflatten(1, (self.centres, -1)), labels, self.scale, self.gamma, self.margin)

    def penalty(self, proxies: Tensor) -> Tensor | None:
        return self.tau * centre_spread(proxies.unflatten(0, (self.centres, -1))) if self.centres > 1 else None
