"""Miners and tuples written elsewhere: a function, a miner of pytorch-metric-learning, a subclass elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners.base import Miner, Pairs, Triplets

FORMS = "(a, p, n), Triplets or Pairs"


class Foreign(Miner):
    """A callable of `(embeddings, labels)` as a miner; its tuples are checked.

    It returns `(a, p, n)`, the pairs `(a1, p, a2, n)` of pytorch-metric-learning, `Triplets` or `Pairs`. If it has an
    argument `distances`, it gets those between the normalised embeddings. If it does not know `anchors`, it mines all
    samples, and the tuples of other samples are masked out.
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
        of_anchors = distances is not None and len(distances) < len(embeddings)
        square = self.prepare(embeddings, labels, None if of_anchors else distances)
        options = {"distances": square} if self.uses_distances else {}
        return _of_anchors(self._read(self.function(embeddings, labels, **options), embeddings), anchors)

    def _read(self, found: Any, embeddings: Tensor) -> Triplets | Pairs:
        if isinstance(found, Sequence) and not isinstance(found, Triplets | Pairs) and len(found) == 4:
            found = _four(found)
        forms = "(a, p, n), (a1, p, a2, n), Triplets or Pairs"
        return check_tuples(found, embeddings, f"tuples of the miner {self.name!r}", forms)


def as_miner(given: Any, argument: str = "miner") -> Miner:
    """A miner of this package as it is, any other callable as a `Foreign`; errors call it `argument`."""
    if isinstance(given, Miner) and type(given).__module__.startswith("oodml."):
        return given
    if isinstance(given, type):
        raise OodmlError(f"{argument} must be a miner, not its class: give {given.__name__}(), or a name.")
    if callable(given):
        return Foreign(given)
    raise OodmlError(f"{argument} must be a name, a dict with a 'name' or a miner, got {given!r}.")


def check_tuples(tuples: Any, embeddings: Tensor, what: str = "tuples", forms: str = FORMS) -> Triplets | Pairs:
    """Triplets or pairs as they are; `(a, p, n)` as triplets that are all valid. Raise for wrong indices.

    Errors call the tuples `what`, and the accepted forms `forms`.
    """
    if isinstance(tuples, Triplets):
        check_indices(tuples[:3], embeddings, 3, what, forms, masks=tuples[3:])
        return tuples
    if isinstance(tuples, Pairs):
        for side, mask in ((tuples[:2], tuples.positive_mask), (tuples[2:4], tuples.negative_mask)):
            check_indices(side, embeddings, 2, what, forms, masks=[mask])
        return tuples
    check_indices(tuples, embeddings, 3, what, forms)
    anchor, positive, negative = tuples
    return Triplets(anchor, positive, negative, torch.ones_like(anchor, dtype=torch.bool))


def check_indices(
    tuples: Any, embeddings: Tensor, length: int, what: str, forms: str, masks: Sequence[Tensor] = ()
) -> None:
    """Raise unless there are `length` index tensors of one length that index the batch, and masks of that length."""
    if not isinstance(tuples, Sequence):
        raise OodmlError(f"{what} must be {forms}, as 1-D index tensors; got {type(tuples).__name__}.")
    indices = list(tuples)
    if len(indices) != length or not all(isinstance(i, Tensor) and i.ndim == 1 for i in indices):
        raise OodmlError(f"{what} must be {forms}, as 1-D index tensors; got {len(indices)} of {_shapes(indices)}.")
    if any(i.dtype != torch.int64 for i in indices) or len({len(i) for i in indices}) != 1:
        raise OodmlError(f"{what} must be int64 index tensors of one length; got {_shapes(indices)}.")
    if any(not isinstance(m, Tensor) or m.dtype != torch.bool or m.shape != indices[0].shape for m in masks):
        raise OodmlError(f"The masks of {what} must be bool and as long as the indices; got {_shapes(list(masks))}.")
    if embeddings.device.type == "cpu" and not torch.compiler.is_compiling() and len(indices[0]):
        low, high = min(int(i.min()) for i in indices), max(int(i.max()) for i in indices)
        if low < 0 or high >= len(embeddings):
            raise OodmlError(f"{what} must index the batch, 0..{len(embeddings) - 1}; got values from {low} to {high}.")


def _shapes(values: list[Any]) -> str:
    shapes = [f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in values]
    return ", ".join(shapes) or "nothing"


def _takes_distances(function: Callable[..., Any]) -> bool:
    if isinstance(function, Miner):
        return function.uses_distances
    try:
        return "distances" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables that are not written in Python have no signature
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
