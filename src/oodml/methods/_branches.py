"""Several MLPs on the same features, computed together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """K heads g_k: features (b, D) -> [(b, t_1), …, (b, t_K)]; each is Linear(D, t_k), then ReLU and Linear(t_k, t_k)
    for every further layer.

    The first layers of all branches are one product. The further layers are one batched product where all branches
    have the same width, and one product a branch otherwise. Without layers the only branch is the features themselves.
    """

    def __init__(self, feature_dim: int, widths: Sequence[int], layers: int = 2) -> None:
        super().__init__()
        self.widths = list(widths) if layers else [feature_dim]
        self.first = nn.Linear(feature_dim, sum(self.widths)) if layers else None
        self.further = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for width in self.widths) for _ in range(layers - 1)
        )

    def forward(self, features: Tensor) -> list[Tensor]:
        if self.first is None:
            return [features]
        outputs = list(self.first(features).split(self.widths, dim=-1))
        for layer in self.further:
            outputs = self._inner(layer, [torch.relu(x) for x in outputs])
        return outputs

    def _inner(self, layer: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        linears: list[nn.Linear] = list(layer)  # type: ignore[call-overload]
        if len(set(self.widths)) > 1 or len(linears) == 1:
            return [linear(x) for linear, x in zip(linears, inputs, strict=True)]
        weights = torch.stack([linear.weight for linear in linears])
        biases = torch.stack([linear.bias for linear in linears])
        return list(torch.baddbmm(biases[:, None], torch.stack(inputs), weights.mT).unbind(0))
