"""CosFace: softmax over class centres with an additive cosine margin."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_not_negative, require_positive
from oodml.losses import register_loss
from oodml.losses.proxies import PaperRate, ProxyLoss


def cosface(cosines: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Cross-entropy of scale · cosines (b, C), the margin taken from the cosine with the own centre."""
    own = F.one_hot(labels, cosines.shape[1]).to(cosines.dtype)
    return F.cross_entropy(scale * (cosines - margin * own), labels)


@register_loss(
    "cosface",
    paper="Wang et al. 2018",
    has_parameters=True,
    search={"scale": (8.0, 64.0), "margin": (0.05, 0.5), "lr": (1e-4, 5e-2)},
)
class CosFace(ProxyLoss):
    """Softmax over class centres with an additive cosine margin.

    L = −1/b Σᵢ log e^{s·(cos θ_{i,yᵢ} − m)} / (e^{s·(cos θ_{i,yᵢ} − m)} + Σ_{c≠yᵢ} e^{s·cos θ_{i,c}})

    Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR 2018: s = 64, m = 0.35. It is not
    in the papers studied here; the learning rate of its centres is that of `arcface`.

    Like `arcface`, with a margin that is equally wide for near and for far embeddings.

    Args:
        scale: s, the radius of the sphere.
        margin: m, on the cosine.
        lr: learning rate of the centres; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        scale: float = 64.0,
        margin: float = 0.35,
        lr: float = PaperRate(5e-4),
    ) -> None:
        super().__init__("cosface", num_classes, embedding_dim, generator, lr=lr, init="uniform")
        require_positive(scale=scale)
        require_not_negative(margin=margin)
        self.scale, self.margin = scale, margin

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        return cosface(cosines, labels, self.scale, self.margin)
