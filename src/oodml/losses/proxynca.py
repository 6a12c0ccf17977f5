"""ProxyNCA: nearer to the proxy of the own class than to any other proxy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_positive
from oodml._tensors import masked_logsumexp, root
from oodml.losses import register_loss
from oodml.losses.proxies import PaperRate, ProxyLoss


@register_loss(
    "proxynca",
    paper="Movshovitz-Attias et al. 2017",
    has_parameters=True,
    search={"radius": (1.0, 8.0), "lr": (1e-4, 5e-2)},
)
class ProxyNCA(ProxyLoss):
    """Nearer to the proxy of the own class than to any other proxy.

    L = 1/b Σᵢ [ d²(rφᵢ, rψ_{yᵢ}) + log Σ_{c≠yᵢ} e^{−d²(rφᵢ, rψ_c)} ], φ (b, d) and ψ (C, d) on the unit sphere

    Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV 2017. The radius r = 3 and the
    proxies' learning rate 5e-4 (50 times the model's 1e-5) as in the code of Roth et al., ICML 2020; their eq. 13
    prints unsquared distances on the unit sphere: `radius=1, squared=False`.

    The own proxy is not in the denominator, so the value can be negative. `proxynca++` includes it, which bounds the
    loss by 0 and trains better.

    Args:
        radius: r, both vectors are scaled to this norm.
        squared: squared Euclidean distances; False: plain ones.
        lr: learning rate of the proxies; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        radius: float = 3.0,
        squared: bool = True,
        lr: float = PaperRate(5e-4),
    ) -> None:
        super().__init__("proxynca", num_classes, embedding_dim, generator, lr=lr, init="normal")
        require_positive(radius=radius)
        self.radius, self.squared = radius, squared

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        squares = 2 * self.radius**2 * (1 - cosines)
        d = squares if self.squared else root(squares)
        own = F.one_hot(labels, cosines.shape[1]).bool()
        return ((d * own).sum(1) + masked_logsumexp(-d, ~own)).mean()
