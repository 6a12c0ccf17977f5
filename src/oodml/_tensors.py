"""Plain tensor functions on a batch, shared by losses, miners and methods.

`anchors=a`: only the first a rows are anchors, and the other rows are constants (a memory of past batches).
Everything here can be differentiated twice, compiled, and runs on any device without waiting for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

# Below the rounding error of ‖x‖² + ‖y‖² − 2xᵀy on the unit sphere; √ε = 1e-4 is the distance of equal points.
EPSILON = 1e-8
NOISE = 2e-3  # two unit rows that are equal may be this far apart in float32: smaller distances are rounding errors
CLAMPED = 1.0001e-4  # a smaller distance is √ε, whichever way its last digit was rounded


def unit_rows(x: Tensor) -> Tensor:
    """The rows divided by their Euclidean norms, (b, d) -> (b, d)."""
    return F.normalize(x)


def inner_products(x: Tensor, anchors: int | None = None) -> Tensor:
    """x_iᵀx_j of anchors and all rows, (b, d) -> (a, b)."""
    if anchors is None:
        return x @ x.T
    batch, constants = x[:anchors], x[anchors:].detach()
    return torch.cat([batch @ batch.T, batch @ constants.T], dim=1)


def squared_distances(x: Tensor, anchors: int | None = None) -> Tensor:
    """‖x_i − x_j‖² = ‖x_i‖² + ‖x_j‖² − 2x_iᵀx_j of anchors and all rows, (b, d) -> (a, b)."""
    products = inner_products(x, anchors)
    i = torch.arange(len(products), device=x.device)
    # Read off the products, they share their rounding: equal rows are exactly 0 apart. Not `products.diagonal()`, of
    # which torch.compile makes a wrong gradient (2.13 and before).
    norms = products[i, i]
    others = norms if anchors is None else torch.cat([norms, x[anchors:].detach().square().sum(1)])
    return norms[:, None] + others - 2 * products


def root(squared: Tensor) -> Tensor:
    """√max(squared, ε): value and gradient are finite at 0, and the gradient there is 0."""
    return squared.clamp_min(EPSILON).sqrt()


def distances(x: Tensor, anchors: int | None = None) -> Tensor:
    """√max(‖x_i − x_j‖², ε) of anchors and all rows, (b, d) -> (a, b).

    Distances below a hundredth of the rows' norms lose digits.
    """
    return root(squared_distances(x, anchors))


def beyond_noise(distance: Tensor) -> Tensor:
    """The distances, raised to the largest distance that equal points may have by rounding."""
    return distance.clamp_min(CLAMPED if distance.dtype == torch.float64 else NOISE)


def same_class(labels: Tensor, anchors: int | None = None) -> Tensor:
    """(b,) -> (a, b) bool: True where anchor and sample share a label (the anchor itself included)."""
    return labels[:anchors, None] == labels


def positives_and_negatives(labels: Tensor, anchors: int | None = None) -> tuple[Tensor, Tensor]:
    """Masks (a, b): samples of the anchor's class without the anchor itself, and samples of other classes."""
    same = same_class(labels, anchors)
    negatives = ~same
    return same.fill_diagonal_(False), negatives


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values, all finite, where the mask is True; 0 (with a gradient of 0) where it never is.

    A mask of numbers says how often each value counts.
    """
    return (values * mask).sum() / mask.sum(dtype=values.dtype).clamp_min(1)


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """log Σ exp over the True entries of each row, (a, b) -> (a,); an empty row gives a huge negative number.

    Not −∞, whose gradient would be NaN. What the caller does with the result must be flat there, as [·]₊ and softplus
    are.
    """
    return torch.where(mask, values, torch.finfo(values.dtype).min / 4).logsumexp(dim)


def mean_norm(x: Tensor, squared: bool) -> Tensor:
    """mean ‖x_i‖² over the rows, or mean ‖x_i‖: a penalty where embeddings are not normalised."""
    squares = x.square().sum(1)
    return squares.mean() if squared else root(squares).mean()


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Switches autocast off for the device of a tensor."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
