"""Verification: error rates of "same class if nearer than a threshold", which practitioners set and shift breaks.

Over all pairs of two different images, the false match rate FMR(τ) is the share of different-class pairs with a
distance below τ, the false non-match rate FNMR(τ) the share of same-class pairs with a distance of τ or more.
The threshold for a rate f is the largest with FMR ≤ f: the distance of rank ⌊f · D⌋ + 1 among the D different-class
pairs (equal distances at the threshold all count as non-matches). Distances are Euclidean, on embeddings as given, in
their own precision; all pairs are counted, in tiles, so memory does not grow with N².
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from oodml._errors import OodmlError
from oodml.evaluation._inputs import as_class_ids, as_embeddings, as_tensors
from oodml.evaluation._pairs import PairSet, count_below, different_at_ranks, pair_set
from oodml.evaluation.scores import Scores

FALSE_MATCH_RATES = (1e-1, 1e-2, 1e-3, 1e-4)


def fnmr_at_fmr(
    embeddings: Any,
    labels: Any,
    fmrs: Sequence[float] = FALSE_MATCH_RATES,
    gallery: Any = None,
    gallery_labels: Any = None,
    normalise: bool = False,
) -> Scores:
    """False non-match rates at given false match rates, keyed "fnmr@fmr=1e-3".

    Args:
        embeddings: (N, d) array or tensor; labels: N labels of any kind.
        fmrs: false match rates, each in (0, 1).
        gallery, gallery_labels: count pairs of a row and a gallery row instead of pairs within the set.
        normalise: divide each embedding by its norm first.

    A rate smaller than one different-class pair in D cannot be resolved: the threshold is then the one without any
    false match, and `.notes["unresolved"]` names the key. Without same-class or without different-class pairs the
    rates are undefined: NaN, with a warning.
    """
    for fmr in fmrs:
        _check_rate(fmr)
    pairs = _pairs(embeddings, labels, gallery, gallery_labels, normalise)
    keys = [f"fnmr@fmr={_short(fmr)}" for fmr in fmrs]
    if _undefined(pairs):
        return Scores(dict.fromkeys(keys, math.nan), notes={"undefined": keys})
    thresholds = _thresholds(pairs, fmrs)
    rates = [(pairs.same - below) / pairs.same for below in count_below(pairs, thresholds, same=True)]
    unresolved = [key for key, fmr in zip(keys, fmrs, strict=True) if _rank(fmr, pairs) == 0]
    return Scores(dict(zip(keys, rates, strict=True)), notes={"unresolved": unresolved} if unresolved else {})


def threshold_drift(
    embeddings: Any,
    labels: Any,
    other_embeddings: Any,
    other_labels: Any,
    fmr: float = 1e-3,
    normalise: bool = False,
) -> Scores:
    """A threshold fixed on one set (validation classes) applied to another (test classes).

    Returns a dict with
        `threshold`: the largest distance threshold whose false match rate on the first set is at most `fmr`;
        `fmr`, `fnmr`: the rates it gives on the first set;
        `other_fmr`, `other_fnmr`: the rates it really gives on the other set;
        `other_threshold`, `other_fnmr_refit`: threshold and false non-match rate had it been set on the other set:
        they tell a threshold that drifted (refitting helps) from classes that are harder (it does not).
    """
    _check_rate(fmr)
    first = _pairs(embeddings, labels, None, None, normalise)
    other = _pairs(other_embeddings, other_labels, None, None, normalise)
    if first.rows.shape[1] != other.rows.shape[1]:
        sizes = f"{first.rows.shape[1]} and {other.rows.shape[1]}"
        raise OodmlError(
            f"The two sets have embeddings of {sizes} dimensions; a threshold carries over only within one model."
        )
    names = ("threshold", "fmr", "fnmr", "other_fmr", "other_fnmr", "other_threshold", "other_fnmr_refit")
    if _undefined(first) or _undefined(other):
        return Scores(dict.fromkeys(names, math.nan), notes={"undefined": list(names)})
    (fixed,), (refit,) = _thresholds(first, [fmr]), _thresholds(other, [fmr])
    rates = (*_rates(first, fixed), *_rates(other, fixed))
    values = (math.sqrt(fixed), *rates, math.sqrt(refit), _rates(other, refit)[1])
    unresolved = [name for name, pairs in (("fmr", first), ("other_fnmr_refit", other)) if _rank(fmr, pairs) == 0]
    return Scores(dict(zip(names, values, strict=True)), notes={"unresolved": unresolved} if unresolved else {})


def _pairs(embeddings: Any, labels: Any, gallery: Any, gallery_labels: Any, normalise: bool) -> PairSet:
    if (gallery is None) != (gallery_labels is None):
        raise OodmlError("gallery and gallery_labels go together: give both or neither.")
    if gallery is None:
        x, ids, _ = as_tensors(embeddings, labels)
        return pair_set(_scaled(x, normalise), ids)
    x, y = as_embeddings(embeddings), as_embeddings(gallery, "gallery")
    if x.shape[1] != y.shape[1]:
        raise OodmlError(
            f"Embeddings have {x.shape[1]} dimensions, the gallery {y.shape[1]}; both must come from one model."
        )
    joined = [*_listed(labels, len(x), "embeddings"), *_listed(gallery_labels, len(y), "gallery")]
    ids, _ = as_class_ids(joined, x.device)
    x, y = _scaled(x, normalise), _scaled(y.to(x), normalise)
    return pair_set(x, ids[: len(x)], y, ids[len(x) :])


def _listed(labels: Any, count: int, what: str) -> list:
    listed = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if len(listed) != count:
        raise OodmlError(f"{count} {what} but {len(listed)} labels: give exactly one label to each row of {what}.")
    return listed


def _scaled(x: Tensor, normalise: bool) -> Tensor:
    return F.normalize(x, dim=1) if normalise else x


def _thresholds(pairs: PairSet, fmrs: Sequence[float]) -> list[float]:
    """Squared thresholds τ²: a pair matches when its squared distance is below."""
    return different_at_ranks(pairs, [_rank(fmr, pairs) for fmr in fmrs])


def _rates(pairs: PairSet, threshold: float) -> tuple[float, float]:
    (false_matches,) = count_below(pairs, [threshold], same=False)
    (matches,) = count_below(pairs, [threshold], same=True)
    return false_matches / pairs.different, (pairs.same - matches) / pairs.same


def _rank(fmr: float, pairs: PairSet) -> int:
    """⌊fmr · D⌋ with the rate as it is written in decimals: .29 of 100 pairs are 29, not 28.999…"""
    return int(Fraction(str(fmr)) * pairs.different)


def _undefined(pairs: PairSet) -> bool:
    missing = "different-class" if pairs.different == 0 else "same-class" if pairs.same == 0 else None
    if missing:
        warnings.warn(f"No {missing} pairs: false match and non-match rates are undefined, NaN.", stacklevel=3)
    return missing is not None


def _check_rate(fmr: float) -> None:
    if not 0 < fmr < 1:
        raise OodmlError(f"A false match rate of {fmr} is asked; give a fraction between 0 and 1, such as 1e-3.")


def _short(rate: float) -> str:
    """1e-3 for .001, 2.5e-2 for .025."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
