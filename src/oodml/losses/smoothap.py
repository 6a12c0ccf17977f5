"""Smooth-AP: average precision with sigmoids in place of the steps of the ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oodml.losses import register_loss
from oodml.losses._distances import masked_mean
from oodml.losses._pairs import PairLoss
from oodml.miners._checks import require_positive
from oodml.miners._distances import where_else

_MOST_ELEMENTS = 2**24  # of one (anchors, positives, references) tensor: 64 MB


def smoothap(
    similarities: Tensor, positives: Tensor, negatives: Tensor, temperature: float, counted: Tensor | None = None
) -> Tensor:
    """1 − mean over anchors of their smooth average precision; all tensors are (a, r).

    `counted` (a,) are the anchors that count, by default those with a positive.

    The definition compares every positive of an anchor with every reference. That tensor is made for as many anchors
    at a time as fit, and made again in the backward pass where one piece is not enough.
    """
    listed = _most_positives(positives)
    pieces = -(-similarities.shape[0] * listed * similarities.shape[1] // _MOST_ELEMENTS)
    if pieces <= 1:
        precision = _average_precision(similarities, positives, negatives, temperature, listed)
    else:
        chunks = (tensor.tensor_split(pieces) for tensor in (similarities, positives, negatives))
        precision = torch.cat(
            [
                checkpoint(  # nothing random inside, and saving the random state would wait for the device
                    _average_precision, s, p, n, temperature, listed, use_reentrant=False, preserve_rng_state=False
                )
                for s, p, n in zip(*chunks, strict=True)
            ]
        )
    return masked_mean(1 - precision, positives.any(1) if counted is None else counted)


def _average_precision(s: Tensor, positives: Tensor, negatives: Tensor, temperature: float, listed: int) -> Tensor:
    """(a,): mean over positives p of (1 + Σ_{q∈P, q≠p} G(s_q − s_p)) / (1 + Σ_{k≠p} G(s_k − s_p))."""
    valid, own = positives, s
    if listed < s.shape[1]:
        columns = positives.to(torch.uint8).topk(listed, dim=1).indices
        valid, own = positives.gather(1, columns), s.gather(1, columns)
    above = ((s[:, None, :] - own[:, :, None]) / temperature).sigmoid()  # (a, listed, r)
    counted = torch.stack([positives, positives | negatives], dim=2).to(s.dtype)  # (a, r, 2)
    # A positive compared with itself gives exactly G(0) = ½: taking it out of 1 + Σ leaves ½ + Σ.
    rank_among_positives, rank = (above @ counted + 0.5).unbind(2)
    return where_else(valid, rank_among_positives / rank, 0.0).sum(1) / valid.sum(1).clamp_min(1)


def _most_positives(positives: Tensor) -> int:
    """How many positives an anchor can have: counted where that is free; on a device it would force a sync."""
    if positives.device.type == "cpu" and not torch.compiler.is_compiling():
        return max(1, int(positives.sum(1).max()))
    return positives.shape[1]


@register_loss("smoothap", paper="Brown et al. 2020", search={"temperature": (0.005, 0.1)})
class SmoothAP(PairLoss):
    """Average precision with sigmoids in place of the steps of the ranks.

    L = 1 − mean over anchors a of 1/|P_a| Σ_{p∈P_a} R⁺_p / R_p,
    R⁺_p = 1 + Σ_{q∈P_a, q≠p} G(s_aq − s_ap),   R_p = 1 + Σ_{k≠a, k≠p} G(s_ak − s_ap),
    G(x) = 1/(1 + e^{−x/τ}), s cosines; over the anchors that have a positive

    Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, τ = .01. Their code
    ranks the anchor itself among its positives: `include_anchor=True`.

    Optimises the ranking that mAP measures; wants large batches with at least four samples a class. Work grows with
    b² times the positives of an anchor (on a GPU b³, where counting them would force a sync), memory with b².

    Args:
        temperature: τ, softness of the steps.
        include_anchor: count the anchor as one of its own positives, as the authors' code does.
    """

    def __init__(self, *, temperature: float = 0.01, include_anchor: bool = False) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature
        self.include_anchor = include_anchor

    def pair_loss(self, similarities: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        others = None
        if self.include_anchor:
            others = positives.any(1)  # an anchor that is its only positive does not count
            positives = positives | torch.eye(*positives.shape, dtype=torch.bool, device=positives.device)
        return smoothap(similarities, positives, negatives, self.temperature, others)
