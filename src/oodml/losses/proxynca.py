"""ProxyNCA: nearer to the proxy of the own class than to any other proxy."""

from __future__ import annotations

import torch
from torch import Tensor

from oodml.losses import register_loss
from oodml.losses._distances import masked_logsumexp
from oodml.losses._proxies import PaperRate, ProxyLoss
from oodml.miners._checks import require_positive
from oodml.miners._distances import root


def proxynca(logits: Tensor, labels: Tensor) -> Tensor:
    """mean( logsumexp_{c≠y} l_c − l_y ) of logits (b, C), the distances to the proxies with their signs turned."""
    own = labels[:, None]
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, own, False)
    return (masked_logsumexp(logits, others) - logits.gather(1, own)[:, 0]).mean()


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

    The own proxy is not in the denominator, so the value can be negative. `proxynca++` puts it there, which bounds
    the loss by 0 and trains better.

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
        scale = 2 * self.radius**2
        if self.squared:  # −d² = scale·(cosine − 1), whose −scale cancels
            return proxynca(scale * cosines, labels)
        return proxynca(-root(scale - scale * cosines), labels)
