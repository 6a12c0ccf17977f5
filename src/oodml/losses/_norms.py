"""The penalty that keeps embeddings small where an objective does not normalise them."""

from __future__ import annotations

from torch import Tensor

from oodml.miners._distances import root


def norm_penalty(squared_norms: Tensor, squared: bool) -> Tensor:
    """mean ‖φ°‖² over the batch, or mean ‖φ°‖; from ‖φ°‖² (b,)."""
    return squared_norms.mean() if squared else root(squared_norms).mean()
