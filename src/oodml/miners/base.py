"""What miners return, and the base classes of miners."""

from __future__ import annotations

import inspect
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from oodml._checks import check_batch, is_whole
from oodml._errors import OodmlError
from oodml._sampling import choose
from oodml._tensors import distances as batch_distances
from oodml._tensors import positives_and_negatives, unit_rows, without_autocast


class Triplets(NamedTuple):
    """Index tensors (t,) int64; `mask` (t,) bool marks the rows that are valid, so shapes are static."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    mask: Tensor


class Pairs(NamedTuple):
    """Positive pairs (a1, p) and negative pairs (a2, n) with their own masks."""

    a1: Tensor
    p: Tensor
    a2: Tensor
    n: Tensor
    positive_mask: Tensor
    negative_mask: Tensor


class Partners(NamedTuple):
    """One triplet per anchor: the indices (2, a) of its positive and its negative; (a,) bool: it has both."""

    columns: Tensor
    mask: Tensor


class Miner:
    """`miner(embeddings, labels, distances=None)`; pass `distances` (b, b) to avoid computing them again.

    Without `distances` they are Euclidean between the L2-normalised embeddings. Nothing here is differentiated, and
    distances stay in float32 under autocast. With `anchors=a` only the first a samples are anchors, whose partners
    come from all samples, and `distances` is (a, b).

    A subclass writes `mine(embeddings, labels, distances)`, whose anchors are the rows of `distances`. One that needs
    only labels sets `uses_distances = False` and gets distances (a, 0) if the caller has none.
    """

    uses_distances: ClassVar[bool] = True

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    @torch.no_grad()
    def __call__(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None, anchors: int | None = None
    ) -> Triplets | Pairs:
        return self.mine(embeddings, labels, self.prepare(embeddings, labels, distances, anchors))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({settings_of(self)})"

    def prepare(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None, anchors: int | None = None
    ) -> Tensor:
        """Check the arguments; return the distances (a, b) as given, or those between the normalised embeddings."""
        check_batch(embeddings, labels)
        rows = len(labels) if anchors is None else anchors
        if not is_whole(rows) or not 1 <= rows <= len(labels):
            most = len(labels)
            raise OodmlError(f"anchors must be a whole number from 1 to the batch's {most} samples, got {anchors!r}.")
        if distances is None and not self.uses_distances:
            return embeddings.new_empty(rows, 0)
        if distances is None:
            with without_autocast(embeddings):
                exact = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
                return batch_distances(unit_rows(exact), anchors)
        if not isinstance(distances, Tensor) or distances.shape != (rows, len(labels)):
            found = tuple(distances.shape) if isinstance(distances, Tensor) else type(distances).__name__
            raise OodmlError(f"distances must be a tensor ({rows}, {len(labels)}), got {found}.")
        return distances.detach() if distances.dtype == torch.float64 else distances.detach().float()

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets | Pairs:
        raise NotImplementedError


class TripletMiner(Miner):
    """A miner of `Triplets`."""

    @torch.no_grad()
    def __call__(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None, anchors: int | None = None
    ) -> Triplets:
        return self.mine(embeddings, labels, self.prepare(embeddings, labels, distances, anchors))

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        raise NotImplementedError


class PartnerMiner(TripletMiner):
    """A miner of one triplet per anchor, in their order: a subclass writes `partners(embeddings, labels, distances)`.

    A miner that wraps another one sets `one_an_anchor` to whether that one is such a miner, and also writes `mine`.
    """

    one_an_anchor: bool = True
    uniform_positives: ClassVar[bool] = False  # positives are drawn uniformly from the anchor's class

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        anchor = torch.arange(len(distances), device=labels.device)
        (positive, negative), mask = self.partners(embeddings, labels, distances)
        return Triplets(anchor, positive, negative, mask)

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        raise NotImplementedError


class PairMiner(Miner):
    """A miner of `Pairs`: a subclass writes `select`, which returns the positives and negatives (a, b) to keep.

    A call returns every pair (a, b) with masks, so that shapes are static; a loss reads `masks` instead.
    """

    @torch.no_grad()
    def __call__(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None, anchors: int | None = None
    ) -> Pairs:
        positive, negative = self.masks(embeddings, labels, distances, anchors)
        places = torch.arange(positive.numel(), device=labels.device)
        rows, columns = places // len(labels), places % len(labels)
        return Pairs(rows, columns, rows, columns, positive.flatten(), negative.flatten())

    @torch.no_grad()
    def masks(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None, anchors: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The positives and the negatives of each anchor that are kept, (a, b) each; arguments as of a call."""
        distances = self.prepare(embeddings, labels, distances, anchors)
        return self.select(distances, *positives_and_negatives(labels, len(distances)))

    def select(self, distances: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def choose_partners(positives: Tensor, negatives: Tensor, generator: torch.Generator | None) -> Partners:
    """A positive and a negative of each row by `choose`, from weights (a, b) each."""
    columns, found = choose(torch.cat([positives.double(), negatives.double()]), generator)
    return Partners(columns.view(2, -1), found.view(2, -1).all(0))


def settings_of(made: object) -> str:
    """The arguments of a miner or a loss that it keeps under their names, for its `repr`."""
    names = inspect.signature(type(made).__init__).parameters
    kept = {name: vars(made)[name] for name in names if name in vars(made) and name != "generator"}
    return ", ".join(f"{name}={value!r}" for name, value in kept.items() if value is not None)
