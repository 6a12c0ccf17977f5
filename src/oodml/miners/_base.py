"""What every miner returns and shares."""

from __future__ import annotations

import inspect
import math
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners._checks import is_whole
from oodml.miners._distances import distance_matrix, positives_and_negatives, unit_rows

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # torch compares no other whole numbers


class Triplets(NamedTuple):
    """Index tensors (t,) int64; `mask` (t,) bool marks the rows that are valid, so shapes stay static."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    mask: Tensor


class Partners(NamedTuple):
    """One triplet an anchor: the indices (2, a) of its positive and its negative; (a,) bool whether it has both."""

    columns: Tensor
    mask: Tensor


class Pairs(NamedTuple):
    """Positive pairs (a1, p) and negative pairs (a2, n) with their own masks."""

    a1: Tensor
    p: Tensor
    a2: Tensor
    n: Tensor
    positive_mask: Tensor
    negative_mask: Tensor


class Miner:
    """`miner(embeddings, labels, distances=None)`; `distances` (b, b) saves recomputing what the loss has already.

    Without `distances` they are Euclidean between the L2-normalised embeddings. Nothing here is differentiated, and
    distances stay in float32 under autocast. With `anchors=a` the first a samples alone are anchors, whose partners
    still come from all samples, and `distances` is (a, b).

    A subclass writes `mine(embeddings, labels, distances)`, whose anchors are the rows of `distances`; one that looks
    at labels alone clears `uses_distances` and is given distances (a, 0) where there are none.
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
        """Check the arguments; the distances (a, b) as given, or those between the normalised embeddings."""
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
                return distance_matrix(unit_rows(exact), anchors)
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
    """A miner of one triplet an anchor, in their order: a subclass writes `partners(embeddings, labels, distances)`.

    A loss takes the partners and spares the list of anchors. `one_an_anchor` is cleared by a miner that wraps another
    and can do so only if that one can; it then writes `mine` too.
    """

    one_an_anchor: bool = True
    uniform_positives: ClassVar[bool] = False  # drawn uniformly from the anchor's class, by labels alone

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        anchor = torch.arange(len(distances), device=labels.device)
        (positive, negative), mask = self.partners(embeddings, labels, distances)
        return Triplets(anchor, positive, negative, mask)

    @torch.no_grad()
    def partners_of(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None, anchors: int | None = None
    ) -> Partners:
        """`partners`, with the arguments of a call."""
        return self.partners(embeddings, labels, self.prepare(embeddings, labels, distances, anchors))

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        raise NotImplementedError


class PairMiner(Miner):
    """A miner of `Pairs` that thinks in masks: `select` says which positives and which negatives (a, b) to keep.

    The pairs it returns are the whole a×b grid with masks, so their shape is static; a loss on whole rows takes the
    `masks` and spares the list.
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


def settings_of(made: object) -> str:
    """The arguments that a miner or a loss was made with, those that it keeps under their names, for its `repr`."""
    names = inspect.signature(type(made).__init__).parameters
    kept = {name: vars(made)[name] for name in names if name in vars(made) and name != "generator"}
    return ", ".join(f"{name}={value!r}" for name, value in kept.items() if value is not None)


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Autocast switched off for the device of a tensor; nothing to enter where it is off already."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def check_batch(embeddings: Tensor, labels: Tensor, num_classes: int | None = None) -> None:
    """Refuse what no objective can use. Values are looked at on CPU tensors only: on a GPU that would force a sync."""
    for name, value in (("embeddings", embeddings), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise OodmlError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
    if embeddings.ndim != 2 or embeddings.shape[1] < 1:
        raise OodmlError(f"embeddings must have shape (batch, dimensions), got {tuple(embeddings.shape)}.")
    if not embeddings.is_floating_point():
        raise OodmlError(f"embeddings must be floating point, got {embeddings.dtype}.")
    if labels.ndim != 1 or labels.shape[0] != embeddings.shape[0]:
        raise OodmlError(
            f"labels must have shape ({embeddings.shape[0]},), one for each row of embeddings, "
            f"got {tuple(labels.shape)}."
        )
    if labels.dtype not in _WHOLE:
        raise OodmlError(f"labels must be whole numbers (int64), got {labels.dtype}.")
    if embeddings.shape[0] < 2:
        raise OodmlError(f"embeddings must hold a batch of at least 2 samples, got {embeddings.shape[0]}.")
    if labels.device != embeddings.device:
        raise OodmlError(f"labels are on {labels.device}, embeddings on {embeddings.device}; move them to one device.")
    if embeddings.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_values(embeddings, labels, num_classes)


def _check_values(embeddings: Tensor, labels: Tensor, num_classes: int | None) -> None:
    # A norm is not finite if any number is not, and costs one pass without a temporary; overflow is told apart below.
    values = embeddings.detach()
    if not math.isfinite(torch.linalg.vector_norm(values).item()) and not torch.isfinite(values).all():
        raise OodmlError("embeddings contain NaN or infinite values; lower the learning rate or look at the inputs.")
    if num_classes is None:
        return
    low, high = (value.item() for value in labels.aminmax())
    if low < 0 or high >= num_classes:
        raise OodmlError(
            f"labels must lie in 0..{num_classes - 1} (num_classes={num_classes}), got values from {low} to {high}."
        )
