"""Singular values of embeddings, and the spectral decay ρ of Roth et al. (2020).

ρ(Φ) = KL(U ‖ S), with S the singular values of the (N, d) matrix of embeddings divided by their sum and U uniform.
0: every direction is used equally; large: the embeddings use few directions. The papers find that low ρ on the training
classes comes with better transfer to unseen ones. As in their code the matrix is not centred by default.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation._inputs import as_embeddings

Direction = Literal["uniform", "spectrum"]
SMALLEST = 1.2e-7  # of the largest singular value: below it float32 embeddings hold rounding, not structure
_ROWS = 1 << 16
_VALUES = 1 << 24  # numbers in one block of rows (128 MB in float64)


def spectrum(embeddings: Any, centre: bool = False) -> Tensor:
    """The min(N, d) singular values of the embeddings, largest first, in float64; min(N − 1, d) when centred.

    Args:
        embeddings: (N, d) array or tensor.
        centre: subtract the mean first; the singular values are then those of the covariance, times √N.
    """
    x = as_embeddings(embeddings)
    if centre:
        x = x - x.mean(dim=0)
    if len(x) <= x.shape[1]:
        wide = x.double()
        return _singular_values(wide @ wide.T)[: max(1, len(x) - centre)]  # centring takes one away
    gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for rows in x.split(_ROWS):
        gram += rows.double().T @ rows.double()
    return _singular_values(gram)


def class_spectra(embeddings: Tensor, ids: Tensor, centre: bool = False) -> tuple[Tensor, Tensor]:
    """Singular values of each class's embeddings alone (Roth et al. 2020, supplement E).

    Args:
        embeddings: (N, d) tensor; ids: (N,) contiguous class ids.

    Returns:
        (C, R) float64, largest first, R = min(largest class, d), zeros where a class has fewer; and (C,) how many
        values each class has, min(n_c, d), or min(n_c − 1, d) centred. The mean over classes is the curve of the
        supplement's figure 11.
    """
    sizes = torch.bincount(ids)
    dim = embeddings.shape[1]
    values = torch.zeros(len(sizes), min(int(sizes.max()), dim), dtype=torch.float64, device=embeddings.device)
    for block in class_blocks(embeddings, ids):
        rows = block.rows
        if centre:
            mean = rows.sum(dim=1, keepdim=True) / block.real.sum(dim=1)[:, None, None]
            rows = (rows - mean) * block.real[..., None]
        gram = rows @ rows.mT if rows.shape[1] <= dim else rows.mT @ rows
        values[block.classes, : gram.shape[-1]] = _singular_values(gram)
    return values, (sizes - int(centre)).clamp(max=dim)


def spectral_decay(
    values: Tensor, drop: int = 0, direction: Direction = "uniform", count: Tensor | None = None
) -> Tensor:
    """ρ of singular values (…, R), largest first.

    Args:
        drop: leave out the first `drop` values (the papers' `rho_spectrum@m` drops m − 1).
        direction: "uniform" for KL(U ‖ S), the papers' ρ; "spectrum" for KL(S ‖ U), their code's negative m.
        count: how many values of each row are meant, (…,); the rest is padding. All of them by default.

    Values below 1.2e-7 of the largest are raised to it, so that embeddings of low rank have a large but finite ρ.
    Embeddings collapsed to the origin count as rank one. A single value is its own uniform distribution: ρ = 0.
    """
    if drop < 0:
        raise OodmlError(f"drop={drop}: the number of leading singular values to leave out cannot be negative.")
    if drop >= values.shape[-1]:
        raise OodmlError(f"drop={drop} leaves none of the {values.shape[-1]} singular values; drop fewer.")
    kept = values[..., drop:].double()
    number = torch.full_like(kept[..., 0], kept.shape[-1]) if count is None else (count - drop).clamp(min=1).double()
    inside = torch.arange(kept.shape[-1], device=kept.device) < number[..., None]
    collapsed = kept[..., :1] <= 0
    first = torch.where(collapsed, 1.0, kept[..., :1])
    kept = torch.cat([first, kept[..., 1:]], dim=-1)
    kept = torch.maximum(kept, SMALLEST * first) * inside
    share = kept / kept.sum(dim=-1, keepdim=True)
    log_ratio = (torch.where(inside, share, 1.0) * torch.where(inside, number[..., None], 1.0)).log()
    if direction == "uniform":
        return (-(log_ratio * inside).sum(dim=-1) / number).clamp(min=0)
    if direction == "spectrum":
        return (share * log_ratio).sum(dim=-1).clamp(min=0)
    raise unknown_name("direction of ρ", direction, ("uniform", "spectrum"))


def _singular_values(gram: Tensor) -> Tensor:
    """Roots of the eigenvalues of a (batch of) Gram matrix, largest first."""
    return torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(-1)


class ClassBlock(NamedTuple):
    """B classes of similar size: their ids (B,), rows (B, W, d) float64 padded with zeros, and which rows are real."""

    classes: Tensor
    rows: Tensor
    real: Tensor


def class_blocks(x: Tensor, ids: Tensor) -> Iterator[ClassBlock]:
    """Every class once, from small to large, about `_VALUES` numbers per block (more only where one class needs it).

    In that order neighbours have similar sizes, which limits padding: a block ends before sizes more than double.
    """
    sizes = torch.bincount(ids)
    by_class = torch.sort(ids, stable=True).indices
    starts = sizes.cumsum(0) - sizes
    ordered = torch.sort(sizes, stable=True)
    counts = ordered.values.tolist()
    first = 0
    while first < len(counts):
        last = _block_end(counts, first, x.shape[1])
        classes, width = ordered.indices[first:last], counts[last - 1]
        offset = torch.arange(width, device=x.device)
        real = offset < sizes[classes][:, None]
        position = torch.where(real, starts[classes][:, None] + offset, 0)
        yield ClassBlock(classes, x[by_class[position]].double() * real[..., None], real)
        first = last


def class_sums(x: Tensor, ids: Tensor, count: int) -> Tensor:
    """(C, d) float64 sums of the rows of each class, added in index order: the same on every run, also on a GPU."""
    order = torch.sort(ids, stable=True).indices
    sizes = torch.bincount(ids, minlength=count)
    return torch.nn.functional.embedding_bag(order, x.double(), sizes.cumsum(0) - sizes, mode="sum")


def _block_end(counts: list[int], first: int, dim: int) -> int:
    like = bisect_right(counts, 2 * counts[first])
    width = counts[like - 1]
    return min(like, first + max(1, _VALUES // (width * max(dim, width))))
