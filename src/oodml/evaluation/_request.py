"""Which scores were asked for: names checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation.retrieval import DEFAULT_RANKED, DEFAULT_RECALL, NAMES, Setting, is_retrieval_metric

CLUSTERING = ("nmi", "ami", "f1", "purity")
DEFAULT_CLUSTERING = ("nmi", "f1")
THRESHOLDS = tuple(f"fnmr@fmr=1e-{digits}" for digits in range(1, 5))
MATCHED = "recall@1:matched"
MATCHED_ERROR = "recall@1:matched:se"
_SHORTHAND = {"fnmr@fmr": THRESHOLDS, MATCHED: (MATCHED, MATCHED_ERROR)}
_KNOWN = (*NAMES, "recall@K", "map@K", "precision@K", *CLUSTERING, "fnmr@fmr", *THRESHOLDS, MATCHED)


def requested_names(
    metrics: str | Sequence[str] | None,
    k: int | Sequence[int] | None,
    setting: Setting,
    *,
    clustering: bool,
    matched: bool,
) -> list[str]:
    """Names of the scores to return, in order, each once.

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
        if not (is_retrieval_metric(name) or name in (*CLUSTERING, *THRESHOLDS, MATCHED, MATCHED_ERROR)):
            raise unknown_name("metric", name, _KNOWN)
    if not names:
        raise OodmlError("metrics is empty: name at least one, or leave it out for the default ones.")
    wanting = [name for name in names if name in (MATCHED, MATCHED_ERROR)]
    if wanting and not matched:
        raise OodmlError(f"{wanting[0]} needs match=(classes, images a class): the size to reduce the set to.")
    return list(dict.fromkeys(names))
