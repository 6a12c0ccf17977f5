"""Proxy Anchor: every proxy pulls its own embeddings and pushes the others, the hardest most."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_not_negative, require_positive
from oodml._tensors import masked_logsumexp
from oodml.losses import register_loss
from oodml.losses.proxies import Init, PaperRate, ProxyLoss


@register_loss(
    "proxyanchor",
    paper="Kim et al. 2020",
    has_parameters=True,
    search={"alpha": (8.0, 64.0), "delta": (0.0, 0.4), "lr": (1e-3, 1e-1)},
)
class ProxyAnchor(ProxyLoss):
    """Every proxy pulls its own embeddings and pushes the others, the hardest most.

    L = 1/|P⁺| Σ_{ψ∈P⁺} log(1 + Σ_{i: yᵢ=ψ} e^{−α(s(φᵢ,ψ) − δ)}) + 1/|P| Σ_{ψ∈P} log(1 + Σ_{i: yᵢ≠ψ} e^{α(s(φᵢ,ψ) + δ)})

    P are all proxies (C, d), P⁺ those with an embedding in the batch (b, d), s the cosine.

    Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020: α = 32, δ = 0.1. The proxies' learning rate
    0.02 (2000 times the model's 1e-5) as in the code of Milbich et al., NeurIPS 2021; Kim et al. use 0.01.

    The strongest proxy loss under the ooDML protocol; it needs the high learning rate of its proxies.

    Args:
        alpha: α, sharpness of the soft maximum.
        delta: δ, margin on the cosine.
        init: "kaiming" (Kim et al.) or "normal" (N(0, 1)/8, the code of Milbich et al.).
        lr: learning rate of the proxies; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        alpha: float = 32.0,
        delta: float = 0.1,
        init: Init = "kaiming",
        lr: float = PaperRate(0.02),
    ) -> None:
        super().__init__("proxyanchor", num_classes, embedding_dim, generator, lr=lr, init=init)
        require_positive(alpha=alpha)
        require_not_negative(delta=delta)
        self.alpha, self.delta = alpha, delta

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        own = F.one_hot(labels, cosines.shape[1]).bool()  # (b, C)
        pull = masked_logsumexp(-self.alpha * (cosines - self.delta), own, dim=0)
        push = masked_logsumexp(self.alpha * (cosines + self.delta), ~own, dim=0)
        return F.softplus(pull).sum() / own.any(0).sum() + F.softplus(push).mean()
