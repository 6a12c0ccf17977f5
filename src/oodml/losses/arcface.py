"""ArcFace: softmax over class centres with an additive angular margin."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_not_negative, require_positive
from oodml.losses import register_loss
from oodml.losses.proxies import PaperRate, ProxyLoss


def angular_margin(cosine: Tensor, margin: float) -> Tensor:
    """cos(θ + m) of θ = arccos(cosine), and cosine − m·sin m beyond θ > π − m, so that it falls monotonically."""
    theta = cosine.clamp(-1 + 1e-7, 1 - 1e-7).acos()  # 1 − 1e-7 is the last float32 at which the gradient is finite
    return torch.where(cosine > -math.cos(margin), (theta + margin).cos(), cosine - margin * math.sin(margin))


@register_loss(
    "arcface",
    paper="Deng et al. 2019",
    has_parameters=True,
    search={"scale": (8.0, 64.0), "margin": (0.1, 0.8), "lr": (1e-4, 5e-2)},
)
class ArcFace(ProxyLoss):
    """Softmax over class centres with an additive angular margin.

    L = −1/b Σᵢ log e^{s·cos(θ_{i,yᵢ} + m)} / (e^{s·cos(θ_{i,yᵢ} + m)} + Σ_{c≠yᵢ} e^{s·cos θ_{i,c}})

    θ_{i,c} is the angle between embedding i (b, d) and the centre of class c (C, d), both on the unit sphere; the sum
    runs over all classes. Beyond θ > π − m the target logit is cos θ − m·sin m.

    Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019. s = 16, m = 0.5 rad and
    the centres' learning rate 5e-4 as in Roth et al., "Revisiting Training Strategies", ICML 2020, A.1.

    Use it with many images per class and no pair structure in the batch; the centres need C · d numbers.

    Args:
        scale: s, the radius of the sphere.
        margin: m, in radians.
        clamp_negative: as in the authors' code, every cosine is clamped at 1e-10 from below, so a centre further than
            90° away (about half of them at the start) has no gradient.
        lr: learning rate of the centres; unless given, `oodml.train` takes at least the model's.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        generator: torch.Generator | None = None,
        *,
        scale: float = 16.0,
        margin: float = 0.5,
        clamp_negative: bool = False,
        lr: float = PaperRate(5e-4),
    ) -> None:
        super().__init__("arcface", num_classes, embedding_dim, generator, lr=lr, init="uniform")
        require_positive(scale=scale)
        require_not_negative(margin=margin)
        self.scale, self.margin, self.clamp_negative = scale, margin, clamp_negative

    def proxy_loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        if self.clamp_negative:
            cosines = cosines.clamp_min(1e-10)
        own = labels[:, None]
        target = angular_margin(cosines.gather(1, own), self.margin)
        return F.cross_entropy(self.scale * cosines.scatter(1, own, target), labels)
