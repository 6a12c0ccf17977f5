"""SoftTriple: softmax over classes that have several centres each."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml._checks import require_not_negative, require_positive, require_whole
from oodml.losses import register_loss
from oodml.losses.cosface import cosface
from oodml.losses.proxies import PaperRate, ProxyLoss


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

    φ (b, d) and ψ (K, C, d) on the unit sphere. R pulls the centres of a class together, so that only centres
    that the data needs remain distinct.

    Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019. K = 2, λ = 8, γ = 0.1,
    δ = 0.01, τ = 0.2 and the centres' learning rate 1e-5 as in Roth et al., ICML 2020, A.1, whose eq. 16 drops the
    factor φᵀψ (and is then constantly 1). Qian et al. use K = 10, λ = 20 for CUB and CARS.

    For classes with several appearances (front and back, male and female); with one centre it is `cosface`.

    Args:
        centres: K, centres per class.
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
        cosines = cosines.unflatten(1, (self.centres, -1))  # (b, K, C)
        similarities = ((cosines / self.gamma).softmax(1) * cosines).sum(1)
        return cosface(similarities, labels, self.scale, self.margin)

    def penalty(self, proxies: Tensor) -> Tensor | float:
        centres = proxies.unflatten(0, (self.centres, -1)).transpose(0, 1)  # (C, K, d)
        k, other = torch.triu_indices(self.centres, self.centres, 1, device=proxies.device)
        distances = (2.00001 - 2 * (centres @ centres.mT)[:, k, other]).sqrt()  # (C, K·(K−1)/2)
        return self.tau * distances.mean() / 2 if self.centres > 1 else 0.0
