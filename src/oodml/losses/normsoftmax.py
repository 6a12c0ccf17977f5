"""Normalised softmax: cross-entropy of cosines with class centres."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_positive
from oodml.losses import register_loss
from oodml.losses.proxies import PaperRate, ProxyLoss


@register_loss(
    "normsoftmax",
    paper="Zhai & Wu 2019",
    has_parameters=True,
    search={"temperature": (0.02, 0.2), "lr": (1e-5, 5e-2)},
)
class NormSoftmax(ProxyLoss):
    """Cross-entropy of cosines with class centres over a temperature.

    L = −1/b Σᵢ log e^{φᵢᵀψ_{yᵢ}/T} / Σ_c e^{φᵢᵀψ_c/T}, embeddings φ (b, d) and centres ψ (C, d) on the unit sphere.

    Zhai & Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019. T = 0.05 and the centres'
    learning rate 1e-5 (0.002 on Online Products) as in Roth et al., ICML 2020, A.1, whose eq. 19 leaves the true class
    out of the denominator; their code, like this, does not.

    The simplest proxy loss, and a strong one if every class has many images.

    Args:
        temperature: T.
        lr: learning rate of the centres; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        temperature: float = 0.05,
        lr: float = PaperRate(1e-5),
    ) -> None:
        super().__init__("normsoftmax", num_classes, embedding_dim, generator, lr=lr, init="uniform")
        require_positive(temperature=temperature)
        self.temperature = temperature

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(cosines / self.temperature, labels)
