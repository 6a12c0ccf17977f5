"""Quadruplet loss (Chen et al., Beyond Triplet Loss: a Deep Quadruplet Network, CVPR 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.losses import register_loss
from oodml.losses._base import Tuples
from oodml.losses._distances import Distances, on_sphere
from oodml.losses._tuples import TupleLoss
from oodml.miners import Miner, Triplets
from oodml.miners._checks import require_not_negative
from oodml.miners._listed import check_indices, checked
from oodml.miners._sampling import choose, uniforms

_FORMS = "(a, p, n), (a, p, n, n2) or Triplets"
Fourth = Literal["class", "position"]
_FEW = 4  # up to this many tuples a sample, a mask of their candidates is no larger than the batch's matrices


def choose_third_class(
    labels: Tensor, anchor: Tensor, negative: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """For each (a, n), a sample uniform over those of neither class, and whether there is one; (t,) each."""
    if len(anchor) > _FEW * len(labels):
        return _choose_in_order(labels, anchor, negative, generator)
    rest = labels.index_select(0, anchor)[:, None] != labels
    return choose(rest & (labels.index_select(0, negative)[:, None] != labels), generator)


def _choose_in_order(
    labels: Tensor, anchor: Tensor, negative: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The same for a long list, in O(t) memory and not O(t·b), at the price of more kernels.

    In the order of the labels each class is one block: a position among the rest steps over the two blocks, of which
    the second is empty where both samples are of one class.
    """
    ordered, order = labels.sort()
    starts, ends = torch.searchsorted(ordered, labels), torch.searchsorted(ordered, labels, right=True)
    low, high = starts[anchor].minimum(starts[negative]), starts[anchor].maximum(starts[negative])
    skip_low = ends[anchor].minimum(ends[negative]) - low
    skip_high = torch.where(low == high, 0, ends[anchor].maximum(ends[negative]) - high)
    rest = len(labels) - skip_low - skip_high
    position = (uniforms(len(anchor), labels.device, generator) * rest).long().minimum((rest - 1).clamp_min(0))
    position = position + torch.where(position >= low, skip_low, 0)
    position = position + torch.where(position >= high, skip_high, 0)
    return order[position.clamp(max=len(labels) - 1)], rest > 0


def choose_by_position(negative: Tensor, positions: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """For each of the mined negatives (t,), a position uniform over those whose own mined negative is another one.

    The authors' code takes the position in the list of triplets for one in the batch, whatever its class: the sample
    may be the anchor itself. It needs a triplet for every position.
    """
    if len(negative) != positions:
        raise OodmlError(
            f"fourth='position' needs one triplet for each of the {positions} anchors, in their order; got "
            f"{len(negative)}. Use a miner of one triplet an anchor, or fourth='class'."
        )
    return choose(negative[:, None] != negative, generator)


@register_loss(
    "quadruplet",
    paper="Chen et al. 2017",
    default_miner="distance",
    search={"margin": (0.1, 1.0), "margin2": (0.1, 0.5)},
)
class Quadruplet(TupleLoss):
    """The triplet loss, and positives nearer to each other than two samples of two further classes.

    mean [d(a,p) − d(a,n₁) + margin]₊ + mean [d(a,p) − d(n₁,n₂) + margin2]₊, d Euclidean on the unit sphere, a, n₁, n₂
    from three classes; margins 1 and .5 (revisiting-supplement eq. 14; its code: .2 and .2). The miner proposes
    (a, p, n₁); n₂ is uniform over the samples of neither class. `fourth="position"`: over the positions of the batch
    whose mined negative is another one, whatever their class, as the authors' code has it. Explicit tuples are
    (a, p, n, n2), or (a, p, n) with n2 drawn.
    """

    needs_triplets = True
    scale_free = True

    def __init__(
        self,
        margin: float = 1.0,
        margin2: float = 0.5,
        fourth: Fourth = "class",
        miner: Miner | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner)
        require_not_negative(margin=margin, margin2=margin2)
        if fourth not in ("class", "position"):
            raise OodmlError(f"fourth must be 'class' or 'position', got {fourth!r}.")
        self.margin, self.margin2, self.fourth = margin, margin2, fourth
        self.generator = generator

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        distances = everywhere = on_sphere(embeddings, anchors)
        if anchors is not None:
            everywhere = Distances(embeddings, unit=True)  # n₁ need not be an anchor
        if isinstance(tuples, Sequence) and not isinstance(tuples, Triplets) and len(tuples) == 4:
            check_indices(tuples, embeddings, 4, "tuples", _FORMS)
            a, p, n, n2 = tuples
            masks = torch.ones(2, len(a), dtype=torch.bool, device=a.device)
        else:
            if tuples is not None:
                tuples = checked(tuples, embeddings, forms=_FORMS)
            a, p, n, mask = self.triplets(distances, labels, tuples)
            if self.fourth == "class":
                n2, found = choose_third_class(labels, a, n, self.generator)
            else:
                n2, found = choose_by_position(n, len(labels) if anchors is None else anchors, self.generator)
            masks = torch.stack([mask, found.logical_and_(mask)])
        near, far, apart = everywhere.between((a, p), (a, n), (n, n2))
        excess = torch.cat([near - far + self.margin, near - apart + self.margin2])
        shares = masks / masks.sum(1, keepdim=True, dtype=excess.dtype).clamp_min_(1)
        return torch.dot(torch.relu(excess), shares.flatten())
