"""The shell every objective shares: input checks, float32 under autocast, learning rates of its parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Loss(nn.Module):
    """`loss(embeddings (b, d), labels (b,), tuples=None)` -> scalar."""

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Any = None) -> Tensor:
        raise NotImplementedError

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The learnable parts with the papers' learning rates and no weight decay."""
        return []
