"""Momentum contrast with distance-weighted negatives (DaNCE of Milbich et al., DiVA, ECCV 2020)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodml.miners.distance import log_inverse_density
from oodml.models.embedder import Embedder

LOWER, UPPER = 0.5, 1.4
WEIGHTINGS = ("query", "batch")


def log_weights(distances: Tensor, dim: int) -> Tensor:
    """log w of each key for each query, (b, K) from their distances: w ∝ 1/q(max(d, .5)), 0 beyond 1.4, sum 1.

    q is the density of distances on the sphere in `dim` dimensions, so that every distance counts alike. A query that
    is far from every key has weights of 0.
    """
    log_density = log_inverse_density(distances, dim, LOWER)
    return log_density.masked_fill_(distances > UPPER, -torch.inf).log_softmax(1).nan_to_num_(nan=-torch.inf)


def batch_weights(distances: Tensor, dim: int) -> Tensor:
    """The weights of the authors' code, (b, K): 1/q relative to the largest of the batch, divided by its sum over the
    queries instead of the keys. A key beyond 1.4 of every query counts 1/b for each."""
    log_density = log_inverse_density(distances, dim, LOWER)
    weights = (log_density - log_density.max()).exp().masked_fill(distances > UPPER, 0.0)
    weights = weights.clamp_min(torch.finfo(distances.dtype).tiny)
    return weights / weights.sum(0)


def contrast(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float, weighting: str = "query") -> Tensor:
    """Mean −log e^{s/τ} / (e^{s/τ} + Σ_j e^{w_j s_j/τ}), a scalar; s = q·k of a unit query and its own key.

    The sum goes over the queue of earlier keys (K, d). w are `log_weights` ("query") or `batch_weights` ("batch"):
    near keys count in full, the rest as e^0. Weights on the terms instead, Σ_j K w_j e^{s_j/τ}, look more natural and
    are not: at τ = .01 their gradients are ten times as large, and on CUB they wrecked the features (recall@1 25).
    """
    products = queries @ queue.T
    with torch.no_grad():
        distances = (2 - 2 * products).clamp_min(0).sqrt()
        dim = queries.shape[1]
        weights = log_weights(distances, dim).exp() if weighting == "query" else batch_weights(distances, dim)
    own = (queries * keys).sum(1, keepdim=True) / temperature
    return -torch.cat([own, products * weights / temperature], dim=1).log_softmax(1)[:, 0].mean()


class Momentum(nn.Module):
    """A slow copy of the embedder with one head, and the queue of keys it made: θ_key ← m θ_key + (1 − m) θ.

    Only the head is copied where the backbone stands still. The copy stays in evaluation mode and takes over running
    statistics as they are. The queue holds the keys of the last `batches` steps, random directions at the start.
    """

    queue: Tensor

    def __init__(
        self, embedder: Embedder, head: str, batches: int, batch_size: int, momentum: float, whole: bool
    ) -> None:
        super().__init__()
        self.head, self.batches, self.momentum = head, batches, momentum
        backbone = copy.deepcopy(embedder.backbone) if whole else None
        self.slow = Embedder(backbone, {head: embedder.specs[head]}, embedder.feature_dim)  # type: ignore[arg-type]
        self.slow.heads.load_state_dict({f"{head}.{k}": v for k, v in embedder.heads[head].state_dict().items()})
        self.slow.feature_scale.copy_(embedder.feature_scale)
        self.slow.requires_grad_(False).eval()
        if whole:
            self.slow.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        rows = torch.randn(batches * batch_size, embedder.specs[head].dim)
        self.register_buffer("queue", F.normalize(rows, dim=1))

    @torch.no_grad()
    def keys(self, inputs: Tensor, embedder: Embedder) -> Tensor:
        """Unit keys (b, d) of the whole batch."""
        self.slow.autocast = embedder.autocast
        keys = F.normalize(self.slow(inputs).heads[self.head], dim=1)
        return keys if embedder.gather is None else embedder.gather(keys)

    @torch.no_grad()
    def update(self, embedder: Embedder, keys: Tensor, step: int) -> None:
        """Move towards the embedder, and let the newest keys replace the oldest."""
        start = step % self.batches * len(keys)
        self.queue[start : start + len(keys)].copy_(keys)
        pairs = [(self.slow.heads[self.head], embedder.heads[self.head])]
        if self.slow.backbone is not None:
            pairs.append((self.slow.backbone, embedder.backbone))
        for slow, fast in pairs:
            torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), 1 - self.momentum)
            if buffers := list(slow.buffers()):
                torch._foreach_copy_(buffers, list(fast.buffers()))
