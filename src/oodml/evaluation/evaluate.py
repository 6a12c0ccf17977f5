"""`evaluate`: embeddings and labels in, a dict of scores out; every retrieval metric from one neighbour pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation._inputs import as_class_ids, as_embeddings
from oodml.evaluation.neighbours import Block, Neighbours, search_blocks
from oodml.evaluation.relevance import (
    GivenRelevance,
    Relevance,
    SameLabel,
    SharedLabel,
    as_relevance_matrix,
    read_label_sets,
)
from oodml.evaluation.retrieval import (
    DEFAULT_RANKED,
    DEFAULT_RECALL,
    NAMES,
    RetrievalMetric,
    Setting,
    is_retrieval_metric,
    retrieval_metric,
    score_block,
)
from oodml.evaluation.scores import Scores

CLUSTERING = ("nmi", "ami", "f1", "purity")
DEFAULT_CLUSTERING = ("nmi", "f1")
_KEPT_BYTES = 2**30  # neighbour lists kept in the result


class _Labels(NamedTuple):
    """What is known about the rows: who is relevant to whom and, with one label a row, class ids and names."""

    relevance: Relevance
    ids: Tensor | None
    gallery_ids: Tensor | None
    names: list | None


def evaluate(
    embeddings: Any,
    labels: Any,
    metrics: str | Sequence[str] | None = None,
    gallery: Any = None,
    gallery_labels: Any = None,
    *,
    k: int | Sequence[int] | None = None,
    normalise: bool = False,
    relevance: Any = None,
    superclasses: Mapping[Any, str] | Sequence[str] | None = None,
    memory: float | None = None,
    keep: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Scores:
    """Scores of embeddings by exact Euclidean search, as fractions."""
    x = _read(embeddings, "embeddings", device, normalise)
    g = None if gallery is None else _read(gallery, "gallery", x.device, normalise)
    _check_sizes(x, g, gallery_labels)
    known = _read_labels(labels, gallery_labels, relevance, len(x), None if g is None else len(g), x.device)
    setting = Setting(len(x) - 1 if g is None else len(g), int(known.relevance.counts.max()), g is None)
    import importlib.util  # until the clustering module lands

    clusters = importlib.util.find_spec("oodml.evaluation.clustering") is not None
    names = _names(metrics, k, setting, clustering=clusters and g is None and known.ids is not None)
    retrieval = [retrieval_metric(name, setting) for name in names if is_retrieval_metric(name)]

    notes: dict[str, Any] = {}
    found, per_query = None, {}
    if retrieval:
        depth = max(metric.depth for metric in retrieval)
        blocks = search_blocks(x, g, depth, memory=None if memory is None else int(memory * 2**30))
        found, per_query = _reduce(blocks, retrieval, known.relevance, len(x), depth, keep, g is None, notes)
    values = {name: _mean(name, per_query[name], notes) for name in per_query}
    values |= _clustering(names, x, g, known, seed)
    return Scores(
        {name: values[name] for name in names},
        neighbours=found,
        notes=notes,
        per_query=per_query,
        ids=known.ids,
        class_names=known.names,
        superclasses=_as_mapping(superclasses, known.names),
    )


def _read(values: Any, what: str, device: str | torch.device | None, normalise: bool) -> Tensor:
    x = as_embeddings(values, what).float()
    x = x if device is None else x.to(device)
    return torch.nn.functional.normalize(x, dim=1) if normalise else x


def _check_sizes(x: Tensor, g: Tensor | None, gallery_labels: Any) -> None:
    if g is None:
        if gallery_labels is not None:
            raise OodmlError("gallery_labels were given without a gallery: give both or neither.")
        if len(x) < 2:
            raise OodmlError("One embedding has no neighbours: give at least two, or a gallery to search in.")
    elif g.shape[1] != x.shape[1]:
        raise OodmlError(
            f"embeddings have {x.shape[1]} columns but the gallery {g.shape[1]}: both need the same space."
        )


def _read_labels(
    labels: Any, gallery_labels: Any, relevance: Any, n: int, n_gallery: int | None, device: torch.device
) -> _Labels:
    if relevance is not None:
        matrix = as_relevance_matrix(relevance, n, n if n_gallery is None else n_gallery, device)
        return _Labels(GivenRelevance(matrix, n_gallery is None), None, None, None)
    if n_gallery is not None and gallery_labels is None:
        raise OodmlError("A gallery was given without gallery_labels: give one label to each of its rows.")
    if (sets := read_label_sets(labels, gallery_labels)) is not None:
        members, others = sets
        _check_length(len(members), n, "labels", "embeddings")
        if n_gallery is not None and others is not None:
            _check_length(len(others), n_gallery, "gallery_labels", "gallery rows")
            others = others.to(device)
        return _Labels(SharedLabel(members.to(device), others), None, None, None)
    if n_gallery is None:
        ids, names = as_class_ids(labels, device)
        _check_length(len(ids), n, "labels", "embeddings")
        return _Labels(SameLabel(ids), ids, None, names)
    _check_length(len(labels), n, "labels", "embeddings")
    _check_length(len(gallery_labels), n_gallery, "gallery_labels", "gallery rows")
    ids, names = as_class_ids(_join(labels, gallery_labels), device)
    return _Labels(SameLabel(ids[:n], ids[n:]), ids[:n], ids[n:], names)


def _check_length(given: int, expected: int, what: str, of: str) -> None:
    if given != expected:
        raise OodmlError(f"{expected} {of} but {given} {what}: give exactly one to each row.")


def _join(labels: Any, gallery_labels: Any) -> np.ndarray:
    """Both label lists in one array; text against numbers would compare as text, so that is an error."""
    first, second = (np.asarray(each.cpu() if isinstance(each, Tensor) else each) for each in (labels, gallery_labels))
    if (first.dtype.kind in "US") != (second.dtype.kind in "US"):
        raise OodmlError(
            f"labels are {first.dtype} but gallery_labels {second.dtype}, so none could be equal: use one kind for both."
        )
    return np.concatenate([first, second])


def _names(
    metrics: str | Sequence[str] | None, k: int | Sequence[int] | None, setting: Setting, clustering: bool
) -> list[str]:
    """Names of the scores to return, in order, each once."""
    cuts = [k] if isinstance(k, int) else k
    if metrics is None:
        allowed = [each for each in DEFAULT_RECALL if each <= setting.candidates] if cuts is None else cuts
        names = [*(f"recall@{each}" for each in allowed), *DEFAULT_RANKED, *(DEFAULT_CLUSTERING if clustering else ())]
    else:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        names += [f"recall@{each}" for each in cuts or ()]
    for name in names:
        if not (is_retrieval_metric(name) or name in CLUSTERING):
            raise unknown_name("metric", name, [*NAMES, "recall@K", "map@K", "precision@K", *CLUSTERING])
    if not names:
        raise OodmlError("metrics is empty: name at least one, or leave it out for the default ones.")
    return list(dict.fromkeys(names))


def _reduce(
    blocks: Iterable[Block],
    metrics: Sequence[RetrievalMetric],
    relevance: Relevance,
    queries: int,
    depth: int,
    keep: int | None,
    excludes_self: bool,
    notes: dict[str, Any],
) -> tuple[Neighbours, dict[str, Tensor]]:
    """Run through the blocks once: the neighbours to keep, and every metric's value for every query."""
    kept = min(depth, keep or max(1, _KEPT_BYTES // (12 * queries)))
    if kept < depth:
        notes["neighbours_kept"] = f"{kept} of the {depth} neighbours each query was ranked by"
    device = relevance.counts.device
    indices = torch.empty(queries, kept, dtype=torch.int64, device=device)
    distances = torch.empty(queries, kept, dtype=torch.float32, device=device)
    per_query = {m.name: torch.empty(queries, dtype=torch.float64, device=device) for m in metrics}
    for start, stop, where, far in blocks:
        indices[start:stop], distances[start:stop] = where[:, :kept], far[:, :kept]
        hits = relevance.hits(start, stop, where)
        for name, value in score_block(metrics, hits, relevance.counts[start:stop]).items():
            per_query[name][start:stop] = value
    if lonely := int((relevance.counts == 0).sum()):
        notes["singletons"] = lonely
    return Neighbours(indices, distances, excludes_self), per_query


def _mean(name: str, values: Tensor, notes: dict[str, Any]) -> float:
    mean = float(values.nanmean())
    if mean == mean:
        return mean
    warnings.warn(f"No query has a relevant item, so {name} has nothing to average: reported as 0.", stacklevel=3)
    notes["undefined"] = [*notes.get("undefined", []), name]
    return 0.0


def _clustering(names: Sequence[str], x: Tensor, g: Tensor | None, known: _Labels, seed: int) -> dict[str, float]:
    wanted = [name for name in names if name in CLUSTERING]
    if not wanted:
        return {}
    if known.ids is None:
        raise OodmlError(f"{wanted[0]} compares clusters with classes: it needs one label a row.")
    from oodml.evaluation.clustering import clustering_scores

    if g is None or known.gallery_ids is None:
        return clustering_scores(x, known.ids, wanted, seed=seed)
    ids = torch.cat([known.ids, known.gallery_ids])
    return clustering_scores(torch.cat([x, g]), ids, wanted, seed=seed)


def _as_mapping(superclasses: Mapping[Any, str] | Sequence[str] | None, names: list | None) -> Mapping[Any, str] | None:
    """A sequence names the super-class of class 0, 1, …, as a data set does."""
    if superclasses is None or isinstance(superclasses, Mapping):
        return superclasses
    if any(not isinstance(name, int) or name >= len(superclasses) for name in names or ()):
        raise OodmlError(
            "superclasses as a list need labels 0 … C−1 with one entry each; otherwise give {label: name}."
        )
    return dict(enumerate(superclasses))
