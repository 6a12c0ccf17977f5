"""Quadruplet loss (Chen et al., Beyond Triplet Loss: a Deep Quadruplet Network, CVPR 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from oodml._checks import require_not_negative
from oodml._errors import OodmlError
from oodml._sampling import choose, uniforms
from oodml._tensors import distances, masked_mean
from oodml.losses import TupleLoss, register_loss
from oodml.losses.base import Tuples
from oodml.miners import Miner, Triplets
from oodml.miners.foreign import check_indices, check_tuples

_FORMS = "(a, p, n), (a, p, n, n2) or Triplets"
Fourth = Literal["class", "position"]
_FEW = 4  # up to this many tuples per sample, a mask of their candidates is no larger than the batch's matrices


@register_loss("quadruplet", paper="Chen et al. 2017", search={"margin": (0.1, 1.0), "margin2": (0.1, 0.5)})
class Quadruplet(TupleLoss):
    """The triplet loss, and positives nearer to each other than two samples of two further classes.

    mean [d(a,p) − d(a,n₁) + margin]₊ + mean [d(a,p) − d(n₁,n₂) + margin2]₊, d Euclidean on the unit sphere, a, n₁, n₂
    from three classes; margins 1 and 0.5 (revisiting-supplement eq. 14; its code: 0.2 and 0.2). The miner finds
    (a, p, n₁); n₂ is uniform over the samples of neither class. `fourth="position"`: uniform over the positions of the
    batch with another mined negative, of any class, as in the authors' code. Explicit tuples are (a, p, n, n2), or
    (a, p, n) with n2 drawn.
    """

    needs_triplets = True

    def __init__(
        self,
        margin: float = 1.0,
        margin2: float = 0.5,
        fourth: Fourth = "class",
        miner: str | dict[str, Any] | Miner = "distance",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(miner, generator)
        require_not_negative(margin=margin, margin2=margin2)
        if fourth not in ("class", "position"):
            raise OodmlError(f"fourth must be 'class' or 'position', got {fourth!r}.")
        self.margin, self.margin2, self.fourth = margin, margin2, fourth
        self.generator = generator

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None, anchors: int | None = None) -> Tensor:
        d = distances(embeddings, anchors)
        if isinstance(tuples, Sequence) and not isinstance(tuples, Triplets) and len(tuples) == 4:
            check_indices(tuples, embeddings, 4, "tuples", _FORMS)
            a, p, n, n2 = tuples
            mask = found = torch.ones_like(a, dtype=torch.bool)
        else:
            if tuples is not None:
                tuples = check_tuples(tuples, embeddings, forms=_FORMS)
            a, p, n, mask = self.triplets(embeddings, labels, tuples, anchors, d)
            if self.fourth == "class":
                n2, found = choose_third_class(labels, a, n, self.generator)
            else:
                n2, found = choose_by_position(n, len(d), self.generator)
        # With a memory, n need not be an anchor.
        apart = d[n, n2] if anchors is None else torch.linalg.vector_norm(embeddings[n] - embeddings[n2], dim=1)
        first = masked_mean(torch.relu(d[a, p] - d[a, n] + self.margin), mask)
        return first + masked_mean(torch.relu(d[a, p] - apart + self.margin2), mask & found)


def choose_third_class(
    labels: Tensor, anchor: Tensor, negative: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """For each (a, n), a sample uniform over those of neither class, and whether there is one; (t,) each."""
    if len(anchor) <= _FEW * len(labels):
        rest = labels.index_select(0, anchor)[:, None] != labels
        return choose(rest & (labels.index_select(0, negative)[:, None] != labels), generator)
    # The same for a long list in O(t) memory instead of O(t·b). In the order of the labels each class is one block: a
    # position among the rest skips the two blocks, of which the second is empty if both samples are of one class.
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
    """For each mined negative (t,), a position uniform over those with another mined negative.

    The authors' code uses the position in the list of triplets as a position in the batch, of any class: the sample may
    be the anchor itself. It needs one triplet for every position.
    """
    if len(negative) != positions:
        raise OodmlError(
            f"fourth='position' needs one triplet for each of the {positions} anchors, in their order; got "
            f"{len(negative)}. Use a miner of one triplet per anchor, or fourth='class'."
        )
    return choose(negative[:, None] != negative, generator)
