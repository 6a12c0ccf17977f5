"""ProxyNCA++: the probability of the own proxy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_positive
from oodml.losses import register_loss
from oodml.losses.proxies import PaperRate, ProxyLoss


@register_loss(
    "proxynca++",
    paper="Teh et al. 2020",
    has_parameters=True,
    search={"temperature": (0.03, 1.0), "lr": (1e-4, 5e-2)},
)
class ProxyNCAPlus(ProxyLoss):
    """The probability of the own proxy, sharpened by a temperature.

    L = −1/b Σᵢ log e^{−d²(φᵢ, ψ_{yᵢ})/T} / Σ_c e^{−d²(φᵢ, ψ_c)/T}, φ (b, d) and ψ (C, d) on the unit sphere

    Teh et al., "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis", ECCV 2020: T = 1/9.
    Their other ingredients (global max pooling, layer norm, class-balanced batches, fast proxies) belong to the model
    and the run. The learning rate of the proxies is that of `proxynca`.

    Args:
        temperature: T.
        lr: learning rate of the proxies; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        temperature: float = 1 / 9,
        lr: float = PaperRate(5e-4),
    ) -> None:
        super().__init__("proxynca++", num_classes, embedding_dim, generator, lr=lr, init="normal")
        require_positive(temperature=temperature)
        self.temperature = temperature

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        # On the unit sphere d² = 2 − 2·cosine, and the first 2 cancels in the softmax.
        return F.cross_entropy(2 / self.temperature * cosines, labels)
