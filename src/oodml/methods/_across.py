"""The task of the shared embedding: triplets across classes, in the set-ups of Sharing Matters, table 8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._sampling import choose, uniforms
from oodml._tensors import same_class
from oodml.losses import Loss, PairMaskLoss, TupleLoss
from oodml.methods._base import Context
from oodml.methods._objective import Spec, check_objective, expand, make_objective
from oodml.miners.base import PairMiner, PartnerMiner, Partners
from oodml.miners.distance import distance_weights
from oodml.miners.npair import one_a_row
from oodml.miners.shared import Shared

TRIPLETS = ("shared", "groups", "min-dap", "no-constraint")
SAMPLERS = ("distance", "semihard", "random")
LOWER, UPPER = 0.5, 1.4
NEGATIVES = 16  # of each anchor, for losses that look at several


class Across(PartnerMiner):
    """One triplet an anchor, its three samples from three different classes.

    sampling "distance": a random positive, and a negative by the inverse density of its distance to the anchor (the
    miner `shared` in its mode "standard"; drawn so too, the positive would be one of the nearest samples);
    "semihard": a random positive and a random negative farther away than it; "random": both uniformly. `nearest`: the
    positive is the nearest sample of another class, and the negative drawn as `sampling` says. `constrained=False`:
    any three samples, whatever their classes.
    """

    def __init__(
        self,
        sampling: str = "distance",
        nearest: bool = False,
        constrained: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        self.sampling, self.nearest, self.constrained = sampling, nearest, constrained

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        classes = labels if self.constrained else torch.arange(len(labels), device=labels.device)
        if self.sampling == "distance" and not self.nearest:
            return Shared("standard", generator=self.generator).partners(embeddings, classes, distances)
        others = ~same_class(classes, len(distances))
        if self.nearest:
            positive = distances.masked_fill(~others, torch.inf).argmin(1)
        else:
            positive, _ = choose(others, self.generator)
        rest = others & (classes != classes[positive][:, None])
        negative, found = choose(self._weights(embeddings, distances, positive, rest), self.generator)
        return Partners(torch.stack([positive, negative]), found)

    def _weights(self, embeddings: Tensor, distances: Tensor, positive: Tensor, rest: Tensor) -> Tensor:
        """How likely each sample is to be the negative, among the `rest` (a, b)."""
        if self.sampling == "distance":
            return distance_weights(distances, ~rest, embeddings.shape[1], LOWER, UPPER)
        if self.sampling == "random":
            return rest
        farther = rest & (distances > distances.gather(1, positive[:, None]))
        return torch.where(farther.any(1, keepdim=True), farther, rest)


class SeveralAcross(PairMiner):
    """A random positive from another class and up to 16 random negatives from third classes, for losses on pairs."""

    uses_distances = False

    def select(self, distances: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        chosen = one_a_row(negatives, self.generator)
        # A sample of a third class differs from the anchor and from every sample of the positive's class.
        rest = negatives & negatives.index_select(0, chosen.int().argmax(1))
        draws = uniforms(rest.numel(), rest.device, self.generator).view_as(rest).masked_fill(~rest, -1)
        last = draws.topk(min(NEGATIVES, rest.shape[1]), dim=1).values[:, -1:]
        return chosen & rest.any(1, keepdim=True), rest & (draws >= last)


def check_shared_task(base: Spec, triplets: str, sampling: str) -> None:
    """Raise for a set-up that the base loss has no form for."""
    kind = check_objective(expand(base, ""))
    if isinstance(kind, PairMaskLoss) and (triplets in ("min-dap", "no-constraint") or sampling != "distance"):
        raise OodmlError(
            f"triplets={triplets!r} with sampling={sampling!r} makes triplets, and {type(kind).__name__} looks at "
            "several pairs of an anchor: use triplets='shared' or 'groups' and the default sampling, or a triplet loss."
        )


def task_objective(base: Spec, miner: Any, context: Context, dim: int) -> Loss:
    """The base loss on tuples of another `miner`; a triplet loss where the base takes no mined tuples (proxies)."""
    options = {key: value for key, value in expand(base, context.dataset).items() if key != "miner"}
    if not isinstance(check_objective(options), TupleLoss):
        options = {"name": "triplet"}
    return make_objective({**options, "miner": miner}, context, dim)


def shared_objective(base: Spec, triplets: str, sampling: str, context: Context, dim: int, groups: int = 0) -> Loss:
    """The base loss on triplets across classes, or between `groups` given as labels.

    A loss without mined tuples (proxies) has no form for them: a triplet loss with semihard negatives in its place,
    as in the paper. Losses over pairs see several negatives; between groups they mine as they always do.
    """
    kind = check_objective(expand(base, context.dataset))
    if not isinstance(kind, TupleLoss):
        sampling = "semihard"
    if isinstance(kind, PairMaskLoss):
        miner: Any = None if triplets == "groups" else SeveralAcross(context.generator)
    elif triplets == "groups":
        miner = sampling
    else:
        miner = Across(sampling, triplets == "min-dap", triplets != "no-constraint", context.generator)
    return task_objective(base, miner, replace(context, num_classes=groups) if groups else context, dim)
