"""The shared task of the method `sharing`: triplets across classes, in the variants of Sharing Matters, table 8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_choice
from oodml._errors import OodmlError
from oodml._sampling import choose, uniforms
from oodml._tensors import same_class
from oodml.losses import Loss, PairMaskLoss, TupleLoss
from oodml.methods.base import Context
from oodml.methods.objective import Spec, check_objective, expand, task_objective
from oodml.miners.base import PairMiner, PartnerMiner, Partners, TripletMiner, Triplets
from oodml.miners.distance import DistanceWeighted, check_range, distance_weights
from oodml.miners.npair import one_a_row
from oodml.miners.shared import Mode, Shared

TRIPLETS = ("shared", "groups", "min-dap", "no-constraint")
SAMPLERS = ("distance", "semihard", "random")
POSITIVES: dict[str, Mode] = {"uniform": "standard", "distance": "full"}  # modes of the miner `shared`
AS_BASE = "base"  # the cut of the base loss's own miner
LOWER, UPPER = 0.5, 1.4  # where the base loss has no miner `distance`
NEGATIVES = 16  # of each anchor, for losses that look at several


class Across(PartnerMiner):
    """One triplet per anchor, its three samples from three different classes.

    sampling "distance": a negative by the inverse density of its distance to the anchor, and a positive drawn uniformly
    or (`positive="distance"`) by that density too: the modes "standard" and "full" of the miner `shared`, whose `lower`
    and `upper` these are; "semihard": a random positive and a random negative farther away than it; "random": both
    uniformly. `nearest`: the positive is the nearest sample of another class, and the negative drawn as `sampling`
    says. `constrained=False`: any three samples, whatever their classes.
    """

    def __init__(
        self,
        sampling: str = "distance",
        nearest: bool = False,
        constrained: bool = True,
        generator: torch.Generator | None = None,
        positive: str = "uniform",
        lower: float = LOWER,
        upper: float | None = UPPER,
    ) -> None:
        super().__init__(generator)
        self.sampling, self.nearest, self.constrained = sampling, nearest, constrained
        self.positive, self.lower, self.upper = positive, lower, upper

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        classes = labels if self.constrained else torch.arange(len(labels), device=labels.device)
        if self.sampling == "distance" and not self.nearest:
            drawn = Shared(POSITIVES[self.positive], self.lower, self.upper, self.generator)
            return drawn.partners(embeddings, classes, distances)
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
            return distance_weights(distances, ~rest, embeddings.shape[1], self.lower, self.upper)
        if self.sampling == "random":
            return rest
        farther = rest & (distances > distances.gather(1, positive[:, None]))
        return torch.where(farther.any(1, keepdim=True), farther, rest)


class AnyThree(TripletMiner):
    """As many triplets as anchors: anchor, positive and negative are three different samples drawn uniformly, whatever
    their classes."""

    uses_distances = False

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        anchors, samples = len(distances), len(labels)
        first, second, third = uniforms(3 * anchors, labels.device, self.generator).view(3, -1)
        anchor = (first * anchors).long()
        positive = (second * (samples - 1)).long()
        positive = positive + (positive >= anchor)  # numbers above the anchor's move up by one: it is left out
        negative = (third * (samples - 2)).long()
        negative = negative + (negative >= torch.minimum(anchor, positive))
        negative = negative + (negative >= torch.maximum(anchor, positive))
        enough = torch.full_like(anchor, samples >= 3, dtype=torch.bool)
        return Triplets(anchor, positive, negative.clamp(max=samples - 1), enough)


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


@dataclass(frozen=True)
class SharedTask:
    """The task of the shared encoder; the options are those of the method `sharing`."""

    base: Spec
    triplets: str = "shared"
    sampling: str | None = None
    positive: str = "uniform"
    upper: float | str | None = AS_BASE

    def check(self) -> None:
        """Raise for an unknown value and for an invalid combination; reads no data."""
        require_choice("sharing", TRIPLETS, triplets=self.triplets)
        require_choice("sharing", SAMPLERS, sampling=self.sampling or SAMPLERS[0])
        require_choice("sharing", POSITIVES, positive=self.positive)
        if isinstance(self.upper, str) and self.upper != AS_BASE:
            raise OodmlError(
                f"upper is a distance, None (no cut) or {AS_BASE!r} (that of the base), got {self.upper!r}."
            )
        kind = self._base_loss()
        check_range(*self._range(kind))
        sampling = self._sampling(kind)
        if isinstance(kind, PairMaskLoss) and (
            self.triplets in ("min-dap", "no-constraint") or sampling != "distance" or self.positive != "uniform"
        ):
            raise OodmlError(
                f"triplets={self.triplets!r} with {sampling=} and positive={self.positive!r} makes triplets, and "
                f"{type(kind).__name__} uses several pairs per anchor: use triplets='shared' or 'groups' and the "
                "default sampling and positive, or a triplet loss."
            )
        if self.positive == "distance" and (self.triplets in ("groups", "min-dap") or sampling != "distance"):
            raise OodmlError(
                f"positive='distance' draws positive and negative by distance, and triplets={self.triplets!r} with "
                f"{sampling=} does not: use triplets='shared' and sampling='distance', or leave positive out."
            )

    def objective(self, context: Context, dim: int, groups: int = 0) -> Loss:
        """The base loss on triplets across classes, or between `groups` given as labels.

        A loss without mined tuples (proxies) is replaced by a triplet loss on squared distances (the paper's eq. 1).
        Losses over pairs get several negatives; between groups they keep their own miner.
        """
        kind = self._base_loss()
        sampling, (lower, upper) = self._sampling(kind), self._range(kind)
        miner: Any = None
        if isinstance(kind, PairMaskLoss):
            miner = None if self.triplets == "groups" else SeveralAcross(context.generator)
        elif self.triplets == "groups":
            miner = {"name": "distance", "lower": lower, "upper": upper} if sampling == "distance" else sampling
        elif self.triplets == "no-constraint" and sampling == "random":
            miner = AnyThree(context.generator)
        else:
            nearest, constrained = self.triplets == "min-dap", self.triplets != "no-constraint"
            miner = Across(sampling, nearest, constrained, context.generator, self.positive, lower, upper)
        context = replace(context, num_classes=groups) if groups else context
        return task_objective(self.base, miner, context, dim, {"name": "triplet", "squared": True})

    def _base_loss(self) -> Loss:
        """A small instance of the base loss."""
        return check_objective(expand(self.base))

    def _sampling(self, kind: Loss) -> str:
        """As given; else the paper's: at random without a constraint, semihard after proxies, by distance elsewhere."""
        if self.sampling is not None:
            return self.sampling
        if self.triplets == "no-constraint":
            return "random"
        return "distance" if isinstance(kind, TupleLoss) else "semihard"

    def _range(self, kind: Loss) -> tuple[float, float | None]:
        """`lower` and `upper` of sampling by distance: those of the base loss's own miner, unless `upper` is given."""
        miner = getattr(kind, "miner", None)
        miner = getattr(miner, "base", miner)  # what rho wraps
        lower, upper = (miner.lower, miner.upper) if isinstance(miner, DistanceWeighted) else (LOWER, UPPER)
        return lower, upper if isinstance(self.upper, str) else self.upper
