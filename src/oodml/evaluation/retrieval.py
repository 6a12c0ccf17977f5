"""Retrieval metrics from hits: which of a query's K nearest neighbours are relevant to it.

For one query let h_r = 1 if its r-th neighbour is relevant and 0 otherwise, prec(r) = (h_1 + … + h_r) / r, P the number
of relevant items there are, M the number of candidates (N − 1 in one set, the gallery's size otherwise), and
n = P + 1 the class size with the query (n = P with a gallery, which does not contain the query). AP(c) = Σ_{r ≤ c}
prec(r) h_r. Then

    recall@k            any h_r with r ≤ k
    precision@k         Σ_{r ≤ k} h_r / k                       precision@c: k = n; precision@1000: k = min(1000, M)
    r-precision         Σ_{r ≤ P} h_r / P
    map@r               AP(P) / P                               Musgrave et al., ECCV 2020
    map@c               AP(min(n, M)) / P                       a perfect ranking scores 1
    map@k               AP(k) / min(k, P)                       map@1000: k = min(1000, M)
    map@c:reference     AP(min(n, M)) / n                       as the code of Roth et al., ICML 2020, computes it
    map@1000:reference  AP(min(1000, M)) / n                    likewise

and a score is the mean over queries. A query without relevant items counts as a miss in recall and is left out of the
others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oodml._errors import OodmlError, unknown_name

DEFAULT_RECALL = (1, 2, 4, 8, 10, 100, 1000)
DEFAULT_RANKED = ("map@r", "map@c", "map@1000", "r-precision")
NAMES = (
    *(f"recall@{k}" for k in DEFAULT_RECALL),
    *DEFAULT_RANKED,
    "map@c:reference",
    "map@1000:reference",
    "precision@c",
    "precision@1000",
)
_PATTERN = re.compile(r"(recall|precision|map)@([1-9]\d*)$")
_NAMED_K = 1000  # map@1000 and precision@1000 are names of the literature, so 1000 is limited to the size of the set


@dataclass(frozen=True)
class Setting:
    """Sizes that the definitions use in addition to the hits."""

    candidates: int  # M
    most_relevant: int  # the largest P of any query
    excludes_self: bool

    @property
    def largest_class(self) -> int:
        """The largest rank that map@c reads."""
        return min(self.most_relevant + self.excludes_self, self.candidates)


@dataclass(frozen=True)
class RetrievalMetric:
    """One metric: how many neighbours it reads, and its value for each query from hits (B, K) and P (B,)."""

    name: str
    depth: int
    per_query: Callable[[Tensor, Tensor], Tensor]
    needs_relevant: bool = True  # queries without relevant items are left out


def is_retrieval_metric(name: str) -> bool:
    return name in NAMES or _PATTERN.match(name) is not None


def retrieval_metric(name: str, setting: Setting) -> RetrievalMetric:
    """The metric called `name` for a set of this size; an error for an unknown name or a cut-off beyond the set."""
    own = int(setting.excludes_self)
    deepest, largest = max(1, setting.most_relevant), max(1, setting.largest_class)
    named = min(_NAMED_K, setting.candidates)
    fixed: dict[str, RetrievalMetric] = {
        m.name: m
        for m in (
            RetrievalMetric("r-precision", deepest, lambda h, p: _hits_within(h, p) / p),
            RetrievalMetric("map@r", deepest, lambda h, p: _average_precision(h, p) / p),
            RetrievalMetric("map@c", largest, lambda h, p: _average_precision(h, p + own) / p),
            RetrievalMetric("map@c:reference", largest, lambda h, p: _average_precision(h, p + own) / (p + own)),
            RetrievalMetric("precision@c", largest, lambda h, p: _hits_within(h, p + own) / (p + own)),
            RetrievalMetric("map@1000:reference", named, lambda h, p: _average_precision(h) / (p + own)),
        )
    }
    if name in fixed:
        return fixed[name]
    if not (match := _PATTERN.match(name)):
        raise unknown_name("retrieval metric", name, [*NAMES, "recall@K", "map@K", "precision@K"])
    kind, k = match[1], int(match[2])
    if kind != "recall" and k == _NAMED_K:
        k = named
    if k > setting.candidates:
        raise OodmlError(
            f"{name} reads {k} neighbours, but every query has {setting.candidates} candidates: "
            f"use a cut-off of at most {setting.candidates}."
        )
    if kind == "recall":
        return RetrievalMetric(name, k, lambda h, _: h.any(1).double(), needs_relevant=False)
    if kind == "precision":
        return RetrievalMetric(name, k, lambda h, _: h.sum(1).double() / k)
    return RetrievalMetric(name, k, lambda h, p: _average_precision(h) / p.clamp(max=k))


def score_block(metrics: Sequence[RetrievalMetric], hits: Tensor, relevant: Tensor) -> dict[str, Tensor]:
    """Every metric for every query of a block: (B,) float64, NaN for a query that the metric leaves out.

    Args:
        hits: (B, K) bool, K at least the largest depth of `metrics`.
        relevant: (B,) int64, the number of relevant items each query has.
    """
    none = relevant == 0
    values = {}
    for metric in metrics:
        value = metric.per_query(hits[:, : metric.depth], relevant)
        values[metric.name] = value.masked_fill(none, torch.nan) if metric.needs_relevant else value
    return values


def _hits_within(hits: Tensor, cut: Tensor) -> Tensor:
    """Σ_{r ≤ cut} h_r for each row, float64."""
    return (hits & (_ranks(hits) <= cut[:, None])).sum(1).double()


def _average_precision(hits: Tensor, cut: Tensor | None = None) -> Tensor:
    """AP(cut) = Σ_{r ≤ cut} prec(r) h_r for each row, float64; `cut=None` takes every column."""
    ranks = _ranks(hits)
    counted = hits if cut is None else hits & (ranks <= cut[:, None])
    precision = hits.cumsum(1, dtype=torch.float32).div_(ranks)
    return precision.mul_(counted).sum(1, dtype=torch.float64)


def _ranks(hits: Tensor) -> Tensor:
    return torch.arange(1, hits.shape[1] + 1, device=hits.device)
