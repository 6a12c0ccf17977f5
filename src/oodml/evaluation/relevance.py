"""Which gallery rows are relevant to a query: those of the same label, of a shared label, or by a boolean matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.evaluation._inputs import as_class_ids, as_joint_ids, check_length

_WORD = 62  # labels packed into one int64, clear of its sign
_CHUNK = 2**24


class Relevance(Protocol):
    """How many relevant candidates each query has, and which neighbours are relevant."""

    counts: Tensor  # (Q,) int64, the query itself not counted

    def hits(self, start: int, stop: int, indices: Tensor) -> Tensor:
        """(B, K) bool: is gallery row indices[i, r] relevant to query start + i?"""
        ...


class SameLabel:
    """Relevant: the same class id. One set (`gallery_ids=None`) or queries against a gallery."""

    def __init__(self, ids: Tensor, gallery_ids: Tensor | None = None) -> None:
        target = ids if gallery_ids is None else gallery_ids
        classes = int(max(ids.max(), target.max())) + 1
        self.counts = torch.bincount(target, minlength=classes)[ids] - int(gallery_ids is None)
        # Gathering labels is bound by memory: the narrow type halves it.
        self._ids, self._target = ids.to(torch.int32), target.to(torch.int32)

    def hits(self, start: int, stop: int, indices: Tensor) -> Tensor:
        return self._target[indices] == self._ids[start:stop, None]


class SharedLabel:
    """Relevant: at least one label in common. Labels are the rows of (N, L) boolean matrices."""

    def __init__(self, members: Tensor, gallery_members: Tensor | None = None) -> None:
        target = members if gallery_members is None else gallery_members
        self._words, self._target = _pack_words(members), _pack_words(target)
        rows = max(1, _CHUNK // len(target))
        wide = target.float().T
        self.counts = torch.cat([((part.float() @ wide) > 0).sum(1) for part in members.split(rows)])
        if gallery_members is None:
            self.counts = self.counts - members.any(1).long()

    def hits(self, start: int, stop: int, indices: Tensor) -> Tensor:
        found = torch.zeros(indices.shape, dtype=torch.bool, device=indices.device)
        for own, target in zip(self._words, self._target, strict=True):
            found |= (target[indices] & own[start:stop, None]) != 0
        return found


class GivenRelevance:
    """Relevant: as in a boolean (Q, G) matrix, whose diagonal is ignored when the queries are the gallery."""

    def __init__(self, matrix: Tensor, excludes_self: bool) -> None:
        self._matrix = matrix
        self.counts = matrix.sum(1) - (matrix.diagonal().long() if excludes_self else 0)

    def hits(self, start: int, stop: int, indices: Tensor) -> Tensor:
        return self._matrix[start:stop].gather(1, indices)


class Labels(NamedTuple):
    """Relevance of the rows to each other and, with one label per row, class ids and class names."""

    relevance: Relevance
    ids: Tensor | None = None
    gallery_ids: Tensor | None = None
    names: list | None = None


def read_labels(
    labels: Any, gallery_labels: Any, relevance: Any, n: int, n_gallery: int | None, device: torch.device
) -> Labels:
    """Labels in any accepted form, checked against n embeddings and n_gallery gallery rows (None: one set)."""
    if relevance is not None:
        matrix = as_relevance_matrix(relevance, n, n if n_gallery is None else n_gallery, device)
        return Labels(GivenRelevance(matrix, n_gallery is None))
    if labels is None:
        raise OodmlError("labels are missing: give one to each embedding, or a boolean matrix as relevance=.")
    if n_gallery is not None and gallery_labels is None:
        raise OodmlError("A gallery was given without gallery_labels: give one label to each of its rows.")
    if (sets := read_label_sets(labels, gallery_labels)) is not None:
        members, others = sets
        check_length(len(members), n, "labels", "embeddings")
        if n_gallery is not None and others is not None:
            check_length(len(others), n_gallery, "gallery_labels", "gallery rows")
            others = others.to(device)
        return Labels(SharedLabel(members.to(device), others))
    if n_gallery is None:
        ids, names = as_class_ids(labels, device)
        check_length(len(ids), n, "labels", "embeddings")
        return Labels(SameLabel(ids), ids, None, names)
    ids, gallery_ids, names = as_joint_ids(labels, gallery_labels, n, n_gallery, device)
    return Labels(SameLabel(ids, gallery_ids), ids, gallery_ids, names)


def read_label_sets(labels: Any, gallery_labels: Any = None) -> tuple[Tensor, Tensor | None] | None:
    """Boolean membership matrices (N, L) and (G, L) if labels are sets or a boolean matrix; None for plain labels."""
    if _is_matrix(labels):
        members = _as_matrix(labels)
        other = None if gallery_labels is None else _as_matrix(gallery_labels)
        if other is not None and other.shape[1] != members.shape[1]:
            raise OodmlError(
                f"labels have {members.shape[1]} columns but gallery_labels {other.shape[1]}: use the same."
            )
        return members, other
    if not _is_sets(labels):
        return None
    if gallery_labels is not None and not _is_sets(gallery_labels):
        raise OodmlError("labels are sets but gallery_labels are not: give both in the same form.")
    both = [*labels, *(gallery_labels if gallery_labels is not None else [])]
    columns = {name: i for i, name in enumerate(sorted({name for each in both for name in each}, key=str))}
    members = torch.zeros(len(both), max(1, len(columns)), dtype=torch.bool)
    pairs = [(row, columns[name]) for row, each in enumerate(both) for name in each]
    if pairs:
        members[tuple(torch.tensor(pairs).T)] = True
    return members[: len(labels)], members[len(labels) :] if gallery_labels is not None else None


def as_relevance_matrix(matrix: Any, queries: int, gallery: int, device: torch.device) -> Tensor:
    """A checked boolean (Q, G) matrix on `device`."""
    read = _as_matrix(matrix, "relevance")
    if tuple(read.shape) != (queries, gallery):
        raise OodmlError(
            f"relevance has shape {tuple(read.shape)}; expected ({queries}, {gallery}), queries × gallery."
        )
    return read.to(device)


def _is_matrix(labels: Any) -> bool:
    return isinstance(labels, (np.ndarray, Tensor)) and labels.ndim == 2


def _is_sets(labels: Any) -> bool:
    return isinstance(labels, Sequence) and len(labels) > 0 and isinstance(labels[0], (set, frozenset, list, tuple))


def _as_matrix(values: Any, what: str = "labels") -> Tensor:
    matrix = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if matrix.ndim != 2:
        raise OodmlError(f"{what} have shape {tuple(matrix.shape)}; expected a boolean matrix.")
    if matrix.dtype != torch.bool and not bool(((matrix == 0) | (matrix == 1)).all()):
        raise OodmlError(f"{what} given as a matrix must hold only True and False (or 1 and 0).")
    return matrix.bool()


def _pack_words(members: Tensor) -> list[Tensor]:
    """(N, L) bool as a list of (N,) int64, 62 labels each."""
    weights = 1 << torch.arange(_WORD, device=members.device)
    return [(part.long() * weights[: part.shape[1]]).sum(1) for part in members.split(_WORD, dim=1)]
