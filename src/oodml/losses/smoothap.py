"""Smooth-AP: average precision with sigmoids in place of the steps of the ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oodml._checks import require_positive
from oodml._tensors import inner_products, masked_mean
from oodml.losses import PairLoss, register_loss
from oodml.losses.base import Tuples

_MOST_ELEMENTS = 2**24  # of one (anchors, positives, references) tensor: 64 MB


def smooth_precision(s: Tensor, positives: Tensor, negatives: Tensor, temperature: float, listed: int) -> Tensor:
    """(a,): mean over positives p of (1 + Σ_{q∈P, q≠p} G(s_q − s_p)) / (1 + Σ_{k≠p} G(s_k − s_p)).

    `listed`: no anchor has more positives.
    """
    valid, own = positives, s
    if listed < s.shape[1]:
        columns = positives.to(torch.uint8).topk(listed, dim=1).indices
        valid, own = positives.gather(1, columns), s.gather(1, columns)
    above = ((s[:, None, :] - own[:, :, None]) / temperature).sigmoid()  # (a, listed, r)
    counted = torch.stack([positives, positives | negatives], dim=2).to(s.dtype)  # (a, r, 2)
    # A positive compared with itself gives exactly G(0) = ½: taking it out of 1 + Σ leaves ½ + Σ.
    rank_among_positives, rank = (above @ counted + 0.5).unbind(2)
    return (rank_among_positives / rank * valid).sum(1) / valid.sum(1).clamp_min(1)


def _most_positives(positives: Tensor) -> int:
    """The largest number of positives of an anchor; on a GPU that would force a sync, and any number is possible."""
    if positives.device.type == "cpu" and not torch.compiler.is_compiling():
        return max(1, int(positives.sum(1).max()))
    return positives.shape[1]


@register_loss("smoothap", paper="Brown et al. 2020", search={"temperature": (0.005, 0.1)})
class SmoothAP(PairLoss):
    """Average precision with sigmoids in place of the steps of the ranks.

    L = 1 − mean over anchors a of 1/|P_a| Σ_{p∈P_a} R⁺_p / R_p,
    R⁺_p = 1 + Σ_{q∈P_a, q≠p} G(s_aq − s_ap),   R_p = 1 + Σ_{k≠a, k≠p} G(s_ak − s_ap),
    G(x) = 1/(1 + e^{−x/τ}), s cosines; over the anchors that have a positive

    Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, τ = 0.01. Their
    code ranks the anchor itself among its positives: `include_anchor=True`.

    Optimises the ranking that mAP measures; use large batches with at least four samples per class. Time grows with b²
    times the positives of an anchor (on a GPU with b³, where counting them would force a sync), memory with b².

    Args:
        temperature: τ, softness of the steps.
        include_anchor: count the anchor as one of its own positives, as the authors' code does.
    """

    def __init__(self, *, temperature: float = 0.01, include_anchor: bool = False) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = temperature
        self.include_anchor = include_anchor

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        positives, negatives = self.pairs(embeddings, labels, tuples, anchors)
        s = inner_products(embeddings, anchors)
        counted = positives.any(1)
        if self.include_anchor:  # an anchor whose only positive is itself does not count
            positives = positives | torch.eye(*positives.shape, dtype=torch.bool, device=positives.device)
        listed = _most_positives(positives)
        settings = self.temperature, listed
        pieces = -(-s.shape[0] * listed * s.shape[1] // _MOST_ELEMENTS)
        if pieces <= 1:
            precision = smooth_precision(s, positives, negatives, *settings)
        else:  # as many anchors at a time as fit; computed again in the backward pass
            precisions = [
                checkpoint(smooth_precision, *parts, *settings, use_reentrant=False, preserve_rng_state=False)
                for parts in zip(*(each.tensor_split(pieces) for each in (s, positives, negatives)), strict=True)
            ]
            precision = torch.cat(precisions)
        return masked_mean(1 - precision, counted)
