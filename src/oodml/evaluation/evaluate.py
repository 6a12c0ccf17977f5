"""`evaluate`: embeddings and labels in, a dict of scores out; one search serves every retrieval metric."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml._machine import pick_device
from oodml.evaluation._inputs import as_embeddings
from oodml.evaluation.clustering import CLUSTERING_METRICS, clustering_scores
from oodml.evaluation.matched import LIST_DEPTH, matched_recall
from oodml.evaluation.metrics import MATCHED, MATCHED_ERROR, METRICS, THRESHOLDS, registered_score, requested_names
from oodml.evaluation.neighbours import Block, Neighbours, find_neighbours, index_blocks, search_blocks
from oodml.evaluation.relevance import Labels, Relevance, read_labels
from oodml.evaluation.rerank import rerank as apply_rerank
from oodml.evaluation.retrieval import RetrievalMetric, Setting, is_retrieval_metric, retrieval_metric, score_block
from oodml.evaluation.scores import Scores
from oodml.evaluation.thresholds import fnmr_at_fmr

_KEPT_BYTES = 2**30  # neighbour lists kept in the result


def evaluate(
    embeddings: Any,
    labels: Any,
    metrics: str | Sequence[str] | None = None,
    gallery: Any = None,
    gallery_labels: Any = None,
    *,
    k: int | Sequence[int] | None = None,
    match: tuple[int, int] | None = None,
    normalise: bool = False,
    relevance: Any = None,
    rerank: str | Mapping[str, Any] | None = None,
    index: Any = None,
    superclasses: Mapping[Any, str] | Sequence[str] | None = None,
    memory: float | None = None,
    keep: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Scores:
    """Scores of embeddings under exact Euclidean search, as fractions.

    Args:
        embeddings: (N, d) array or tensor, on the CPU or a GPU, used as given.
        labels: N labels (integers, text, …); or one set of labels per row, or a boolean (N, L) matrix of labels: rows
            are then relevant to each other if they share one, and only retrieval metrics apply.
        metrics: names, see `oodml.evaluation.retrieval` for the definitions: "recall@K", "map@r", "map@c",
            "map@1000", "map@K", "r-precision", "precision@K", "precision@c", "map@c:reference", "map@1000:reference",
            "nmi", "ami", "f1", "purity", "fnmr@fmr", "recall@1:matched", and those of `register_metric`. None: recall
            at 1, 2, 4, 8, 10, 100 and 1000 as far as the set allows, map@r, map@c, map@1000, r-precision and, within
            one set, nmi and f1.
        gallery: (G, d) rows to search instead of the other embeddings, with `gallery_labels`; nothing is excluded.
        k: cut-offs of recall, one or several; larger than the set is an error.
        match: (classes, images per class) for "recall@1:matched", see `oodml.evaluation.matched`.
        normalise: divide each embedding by its norm first.
        relevance: boolean (N, N) or (N, G) matrix that replaces the labels, which may then be None.
        rerank: "query-expansion", "k-reciprocal" or a dict of a name and options, see `oodml.evaluation.rerank`.
        index: a faiss index that holds the searched rows in their order, for an approximate search.
        superclasses: {label: superclass}, or a list of them for labels 0 … C−1, for `.per_superclass()`.
        memory: GiB that a block of distances may take; None: chosen for the device.
        keep: neighbours kept in `.neighbours`; None: all that were ranked, as far as they fit 1 GiB.
        device: where to compute; None: where the embeddings are.
        seed: of the k-means and of the draws of "recall@1:matched".

    Returns:
        `Scores`: a dict with `.neighbours`, `.notes`, `.per_query`, `.per_class()`, `.per_superclass()`, `.interval()`.
        A query without relevant items is a miss in recall, is left out of the other retrieval metrics, and is counted
        in `.notes["singletons"]`. With a gallery, clusters are made of all rows together, and thresholds are those of
        pairs of a query and a gallery row.
    """
    x = _read(embeddings, "embeddings", device, normalise)
    g = None if gallery is None else _read(gallery, "gallery", x.device, normalise)
    _check_sizes(x, g, gallery_labels)
    known = read_labels(labels, gallery_labels, relevance, len(x), None if g is None else len(g), x.device)
    setting = Setting(len(x) - 1 if g is None else len(g), int(known.relevance.counts.max()), g is None)
    single = g is None and known.ids is not None
    names = requested_names(metrics, k, setting, clustering=single, matched=match is not None)
    if match is not None and (not single or index is not None or rerank is not None):
        raise OodmlError(f"{MATCHED} is defined for one set with one label per row and a plain exact search.")
    retrieval = [retrieval_metric(name, setting) for name in names if is_retrieval_metric(name)]
    depths = [metric.depth for metric in retrieval] + ([] if match is None else [min(LIST_DEPTH, setting.candidates)])
    depth = max(depths, default=0)

    notes: dict[str, Any] = {}
    values: dict[str, float] = {}
    found: Neighbours | None = None
    per_query: dict[str, Tensor] = {}
    if depth:
        ranking = _Ranking(retrieval, known.relevance, _kept(len(x), depth, keep, notes), exact=index is None)
        _search(x, g, depth, ranking.consume, memory, index, rerank, notes)
        found, per_query = ranking.neighbours(excludes_self=g is None), ranking.per_query
        if singletons := int((known.relevance.counts == 0).sum()):
            notes["singletons"] = singletons
        values = {name: _mean(name, per_query[name], notes) for name in per_query}
    values |= _whole_set(names, x, g, known, seed, notes)
    if match is not None and found is not None and known.ids is not None:
        matched = matched_recall(x, known.ids, match, found, seed)
        values |= {MATCHED: matched.value, MATCHED_ERROR: matched.standard_error}
        notes["matched"] = matched.note
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
    x = x if device is None else x.to(pick_device(device))
    return torch.nn.functional.normalize(x, dim=1) if normalise else x


def _check_sizes(x: Tensor, g: Tensor | None, gallery_labels: Any) -> None:
    if g is None:
        if gallery_labels is not None:
            raise OodmlError("gallery_labels were given without a gallery: give both or neither.")
        if len(x) < 2:
            raise OodmlError("One embedding has no neighbours: give at least two, or a gallery to search in.")
    elif g.shape[1] != x.shape[1]:
        raise OodmlError(
            f"embeddings have {x.shape[1]} columns and the gallery {g.shape[1]}: give both from one model."
        )


def _search(
    x: Tensor,
    g: Tensor | None,
    depth: int,
    consume: Callable[[Block], None],
    memory: float | None,
    index: Any,
    rerank: str | Mapping[str, Any] | None,
    notes: dict[str, Any],
) -> None:
    """Pass the neighbours that every metric reads to `consume`: searched, or from an index; re-ranked if requested."""
    size = None if memory is None else int(memory * 2**30)
    if index is not None:
        if rerank is not None:
            raise OodmlError("Re-ranking needs an exact search: leave out index or rerank.")
        notes["approximate"] = f"neighbours come from the given {type(index).__name__}, an approximate search"
        for block in index_blocks(index, x, depth, len(x if g is None else g), excludes_self=g is None):
            consume(block)
    elif rerank is not None:
        notes["reranked"] = str(rerank)
        again = apply_rerank(rerank, find_neighbours(x, g, depth, memory=size), x, g)
        consume(Block(0, len(x), again.indices, again.distances))
    else:
        search_blocks(x, g, depth, consume, memory=size)


def _kept(queries: int, depth: int, keep: int | None, notes: dict[str, Any]) -> int:
    """How many of the ranked neighbours the result keeps."""
    if keep is not None and keep < 1:
        raise OodmlError(f"keep={keep}: keep at least one neighbour.")
    kept = min(depth, keep or max(1, _KEPT_BYTES // (12 * queries)))
    if kept < depth:
        notes["neighbours_kept"] = f"{kept} of the {depth} neighbours each query was ranked by"
    return kept


class _Ranking:
    """Collects blocks of neighbours: those to keep, and every metric's value for every query."""

    def __init__(self, metrics: Sequence[RetrievalMetric], relevance: Relevance, kept: int, exact: bool) -> None:
        queries, device = len(relevance.counts), relevance.counts.device
        self._metrics, self._relevance, self._exact = metrics, relevance, exact
        self._indices = torch.empty(queries, kept, dtype=torch.int64, device=device)
        self._distances = torch.empty(queries, kept, dtype=torch.float32, device=device)
        self.per_query = {m.name: torch.empty(queries, dtype=torch.float64, device=device) for m in metrics}

    def consume(self, block: Block) -> None:
        rows, kept = slice(block.start, block.stop), self._indices.shape[1]
        self._indices[rows], self._distances[rows] = block.indices[:, :kept], block.distances[:, :kept]
        if self._exact:
            hits = self._relevance.hits(block.start, block.stop, block.indices)
        else:  # an index may leave places empty (−1), which are not hits
            hits = self._relevance.hits(block.start, block.stop, block.indices.clamp_min(0)) & (block.indices >= 0)
        for name, value in score_block(self._metrics, hits, self._relevance.counts[rows]).items():
            self.per_query[name][rows] = value

    def neighbours(self, excludes_self: bool) -> Neighbours:
        return Neighbours(self._indices, self._distances, excludes_self, self._exact)


def _mean(name: str, values: Tensor, notes: dict[str, Any]) -> float:
    mean = float(values.nanmean())
    if mean == mean:
        return mean
    warnings.warn(f"No query has a relevant item, so {name} is undefined: reported as 0.", stacklevel=3)
    notes["undefined"] = [*notes.get("undefined", []), name]
    return 0.0


def _whole_set(
    names: Sequence[str], x: Tensor, g: Tensor | None, known: Labels, seed: int, notes: dict[str, Any]
) -> dict[str, float]:
    """Scores that are not read from the ranking: clustering, thresholds and registered metrics."""
    clustering = [name for name in names if name in CLUSTERING_METRICS]
    thresholds = [name for name in names if name in THRESHOLDS]
    registered = [name for name in names if name in METRICS]
    if not clustering and not thresholds and not registered:
        return {}
    if known.ids is None:
        raise OodmlError(f"{(clustering + thresholds + registered)[0]} needs classes: give one label per row.")
    if registered and g is not None:
        raise OodmlError(f"The registered metric {registered[0]!r} is defined for one set: leave the gallery out.")
    values = {name: registered_score(name, x, known.ids) for name in registered}
    if clustering:
        rows = x if g is None else torch.cat([x, g])
        ids = known.ids if known.gallery_ids is None else torch.cat([known.ids, known.gallery_ids])
        values |= clustering_scores(rows, ids, clustering, seed=seed)
    if thresholds:
        rates = [float(name.partition("=")[2]) for name in thresholds]
        found = fnmr_at_fmr(x, known.ids, rates, gallery=g, gallery_labels=known.gallery_ids)
        values |= found
        notes |= found.notes
    return values


def _as_mapping(superclasses: Mapping[Any, str] | Sequence[str] | None, names: list | None) -> Mapping[Any, str] | None:
    """A sequence names the superclass of class 0, 1, …, as `Dataset.superclasses` does."""
    if superclasses is None or isinstance(superclasses, Mapping):
        return superclasses
    if any(not isinstance(name, int) or name >= len(superclasses) for name in names or ()):
        raise OodmlError(
            "superclasses as a list need labels 0 … C−1 with one entry each; otherwise give {label: name}."
        )
    return dict(enumerate(superclasses))
