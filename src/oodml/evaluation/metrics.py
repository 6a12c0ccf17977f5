"""Names of metrics: those of the package, those a user registers, and which of them a call asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml._registry import Registry
from oodml.evaluation.clustering import CLUSTERING_METRICS
from oodml.evaluation.retrieval import DEFAULT_RANKED, DEFAULT_RECALL, NAMES, Setting, is_retrieval_metric

DEFAULT_CLUSTERING = ("nmi", "f1")
THRESHOLDS = tuple(f"fnmr@fmr=1e-{digits}" for digits in range(1, 5))
MATCHED = "recall@1:matched"
MATCHED_ERROR = "recall@1:matched:se"
_SHORTHAND = {"fnmr@fmr": THRESHOLDS, MATCHED: (MATCHED, MATCHED_ERROR)}
_WHOLE_SET = (*CLUSTERING_METRICS, *THRESHOLDS, MATCHED, MATCHED_ERROR)

METRICS = Registry("metric", "oodml.evaluation", "oodml.metrics")
metric_records = METRICS.records

Metric = Callable[[Tensor, Tensor], float]


def register_metric(name: str, function: Metric | None = None, *, replace: bool = False, **facts: Any) -> Any:
    """Add a metric of your own to `evaluate`, `RunConfig(metrics=…)` and studies; a decorator without `function`.

    Args:
        name: one word, not the name of a metric of the package. A changed function needs a new name, because scores
            of finished runs are found by it.
        function: (embeddings (N, d) float32, class ids (N,) int64 0 … C−1) → one number, where larger is better.
    """
    if is_retrieval_metric(name) or name in (*_SHORTHAND, *_WHOLE_SET):
        raise OodmlError(f"The metric {name!r} is part of the package: register yours under another name.")
    return METRICS.register(name, function, replace=replace, **facts)


def registered_score(name: str, embeddings: Tensor, ids: Tensor) -> float:
    """The value of a registered metric."""
    value = METRICS[name].factory(embeddings, ids)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OodmlError(f"The metric {name!r} must return one number, got {type(value).__name__}.") from None


def check_metrics(names: Iterable[str]) -> None:
    """Raise for a name that a run cannot be scored by, before any data is read."""
    for name in names:
        if not is_retrieval_metric(name) and name not in CLUSTERING_METRICS and name not in METRICS:
            raise unknown_name("metric", name, [*NAMES, "recall@K", *CLUSTERING_METRICS, *METRICS.names()])


def requested_names(
    metrics: str | Sequence[str] | None,
    k: int | Sequence[int] | None,
    setting: Setting,
    *,
    clustering: bool,
    matched: bool,
) -> list[str]:
    """Names of the scores to return, in order, each once; checked before anything is computed.

    Without `metrics`, the defaults: recall at the cut-offs the set allows (or at `k`), the ranked metrics, the
    clustering ones if `clustering`, and matched recall if `matched`.
    """
    cuts = [k] if isinstance(k, int) else None if k is None else [int(each) for each in k]
    if metrics is None:
        allowed = [each for each in DEFAULT_RECALL if each <= setting.candidates] if cuts is None else cuts
        names = [*(f"recall@{each}" for each in allowed), *DEFAULT_RANKED, *(DEFAULT_CLUSTERING if clustering else ())]
    else:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        names += [f"recall@{each}" for each in cuts or ()]
    names += [MATCHED] if matched else []
    names = [single for name in names for single in _SHORTHAND.get(name, (name,))]
    for name in names:
        if not (is_retrieval_metric(name) or name in _WHOLE_SET or name in METRICS):
            known = (*NAMES, "recall@K", "map@K", "precision@K", *_WHOLE_SET, *_SHORTHAND, *METRICS.names())
            raise unknown_name("metric", name, known)
    if not names:
        raise OodmlError("metrics is empty: name at least one, or leave it out for the default ones.")
    if not matched and (wanting := [name for name in names if name in (MATCHED, MATCHED_ERROR)]):
        raise OodmlError(f"{wanting[0]} needs match=(classes, images per class): the size to reduce the set to.")
    return list(dict.fromkeys(names))
