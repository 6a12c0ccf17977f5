"""Miners written elsewhere: a function, one of pytorch-metric-learning, a subclass of ours in another package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners._base import Miner, Pairs, Triplets
from oodml.miners._listed import checked


class Foreign(Miner):
    """A callable of `(embeddings, labels)` as a miner; its tuples are checked.

    One with an argument `distances` is given those between the normalised embeddings. It returns `(a, p, n)`, the
    pairs `(a1, p, a2, n)` of pytorch-metric-learning, `Triplets` or `Pairs`. What knows no `anchors` mines all samples,
    and the tuples of the others are masked out.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.uses_distances = _takes_distances(function)  # type: ignore[misc]

    @torch.no_grad()
    def __call__(
        self, embeddings: Tensor, labels: Tensor, distances: Tensor | None = None, anchors: int | None = None
    ) -> Triplets | Pairs:
        if isinstance(self.function, Miner):
            return self._read(self.function(embeddings, labels, distances, anchors), embeddings)
        few = distances is not None and len(distances) < len(embeddings)  # those of the anchors alone
        square = self.prepare(embeddings, labels, None if few else distances)
        options = {"distances": square} if self.uses_distances else {}
        return _of_anchors(self._read(self.function(embeddings, labels, **options), embeddings), anchors)

    def _read(self, found: Any, embeddings: Tensor) -> Triplets | Pairs:
        if isinstance(found, Sequence) and not isinstance(found, Triplets | Pairs) and len(found) == 4:
            found = _four(found)
        forms = "(a, p, n), (a1, p, a2, n), Triplets or Pairs"
        return checked(found, embeddings, f"tuples of the miner {self.name!r}", forms)


def as_miner(given: Any, argument: str = "miner") -> Miner:
    """A miner as it is, and what comes from elsewhere made one; errors call it `argument`."""
    if isinstance(given, Miner) and type(given).__module__.startswith("oodml."):
        return given
    if isinstance(given, type):
        raise OodmlError(f"{argument} must be a miner, not its class: give {given.__name__}(), or a name.")
    if callable(given):
        return Foreign(given)
    raise OodmlError(f"{argument} must be a name, a dict with a 'name' or a miner, got {given!r}.")


def _takes_distances(function: Callable[..., Any]) -> bool:
    if isinstance(function, Miner):
        return function.uses_distances
    try:
        return "distances" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # what is not written in Python may tell nothing of its arguments
        return False


def _four(found: Sequence[Any]) -> Any:
    """Four tensors: triplets and their mask, or two lists of pairs that are all valid."""
    if not all(isinstance(each, Tensor) for each in found):
        return found
    if found[3].dtype == torch.bool:
        return Triplets(*found)
    a1, p, a2, n = found
    return Pairs(a1, p, a2, n, *(torch.ones_like(each, dtype=torch.bool) for each in (a1, a2)))


def _of_anchors(mined: Triplets | Pairs, anchors: int | None) -> Triplets | Pairs:
    """The tuples of the first `anchors` samples; the others masked out."""
    if anchors is None:
        return mined
    if isinstance(mined, Pairs):
        return Pairs(
            *(mined.a1.clamp(max=anchors - 1), mined.p, mined.a2.clamp(max=anchors - 1), mined.n),
            *(mined.positive_mask & (mined.a1 < anchors), mined.negative_mask & (mined.a2 < anchors)),
        )
    a, p, n, mask = mined
    return Triplets(a.clamp(max=anchors - 1), p, n, mask & (a < anchors))
