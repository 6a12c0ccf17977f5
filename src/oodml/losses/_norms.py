"""The penalty that keeps embeddings small where an objective does not normalise them."""

from __future__ import annotations

from torch import Tensor

from oodml.miners._distances import root


def norm_penalty(embeddings: Tensor, squared: bool) -> Tensor:
    """mean ‖φ°‖² over the batch, or mean ‖φ°‖."""
    norms = embeddings.square().sum(1)
    return norms.mean() if squared else root(norms).mean()
