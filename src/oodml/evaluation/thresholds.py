"""Verification: error rates of "same class if nearer than a threshold".

Over all pairs of two different images, the false match rate FMR(τ) is the share of different-class pairs with a
distance below τ, the false non-match rate FNMR(τ) the share of same-class pairs with a distance of τ or more.
The threshold for a rate f is the largest with FMR ≤ f: the distance of rank ⌊f · D⌋ + 1 among the D different-class
pairs (equal distances at the threshold all count as non-matches). Distances are Euclidean, on embeddings as given, in
their own precision; all pairs are counted, in tiles, so memory does not grow with N².
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._errors import OodmlError
from oodml.evaluation._inputs import as_embeddings, as_joint_ids, as_tensors
from oodml.evaluation.scores import Scores

FALSE_MATCH_RATES = (1e-1, 1e-2, 1e-3, 1e-4)
_TILE = {"cpu": 2048, "cuda": 8192}
_RADIX = 16  # bits of a distance found in one pass over the pairs


class PairSet(NamedTuple):
    """Rows and columns sorted by class, so that same-class pairs lie in few tiles. `one_set`: each pair counts once."""

    rows: Tensor
    row_ids: Tensor
    columns: Tensor
    column_ids: Tensor
    one_set: bool
    same: int
    different: int


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
        `other_fmr`, `other_fnmr`: the rates it gives on the other set;
        `other_threshold`, `other_fnmr_refit`: threshold and false non-match rate if it is set on the other set. If
        refitting helps, the threshold drifted; if it does not, the classes are harder.
    """
    _check_rate(fmr)
    first = _pairs(embeddings, labels, None, None, normalise)
    other = _pairs(other_embeddings, other_labels, None, None, normalise)
    if first.rows.shape[1] != other.rows.shape[1]:
        sizes = f"{first.rows.shape[1]} and {other.rows.shape[1]}"
        raise OodmlError(
            f"The two sets have embeddings of {sizes} dimensions; a threshold is valid within one model only."
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
    ids, gallery_ids, _ = as_joint_ids(labels, gallery_labels, len(x), len(y), x.device)
    return pair_set(_scaled(x, normalise), ids, _scaled(y.to(x), normalise), gallery_ids)


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
    """⌊fmr · D⌋ with the rate as written in decimals: 0.29 of 100 pairs are 29, not 28.999…"""
    return int(Fraction(str(fmr)) * pairs.different)


def _undefined(pairs: PairSet) -> bool:
    missing = "different-class" if pairs.different == 0 else "same-class" if pairs.same == 0 else None
    if missing:
        warnings.warn(f"No {missing} pairs: false match and non-match rates are undefined, NaN.", stacklevel=3)
    return missing is not None


def _check_rate(fmr: float) -> None:
    if not 0 < fmr < 1:
        raise OodmlError(f"The false match rate {fmr} is invalid: give a fraction between 0 and 1, such as 1e-3.")


def _short(rate: float) -> str:
    """1e-3 for 0.001, 2.5e-2 for 0.025."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def pair_set(x: Tensor, ids: Tensor, gallery: Tensor | None = None, gallery_ids: Tensor | None = None) -> PairSet:
    """Unordered pairs within `x`, or all pairs of a row of `x` and a row of `gallery` (class ids shared)."""
    one_set = gallery is None or gallery_ids is None
    y, y_ids = (x, ids) if gallery is None or gallery_ids is None else (gallery, gallery_ids)
    mean = y.mean(dim=0)  # small numbers lose less in ‖x‖² + ‖y‖² − 2x·y
    classes = int(max(ids.max(), y_ids.max())) + 1
    sizes, y_sizes = torch.bincount(ids, minlength=classes), torch.bincount(y_ids, minlength=classes)
    same = int((sizes * (sizes - 1) // 2 if one_set else sizes * y_sizes).sum())
    total = len(x) * (len(x) - 1) // 2 if one_set else len(x) * len(y)
    order, y_order = torch.sort(ids, stable=True).indices, torch.sort(y_ids, stable=True).indices
    rows, row_ids = x[order] - mean, ids[order]
    columns, column_ids = (rows, row_ids) if one_set else (y[y_order] - mean, y_ids[y_order])
    return PairSet(rows, row_ids, columns, column_ids, one_set, same, total - same)


def count_below(pairs: PairSet, thresholds: Sequence[float], same: bool) -> list[int]:
    """How many pairs of one kind have a squared distance below each threshold."""
    edges = pairs.rows.new_tensor(thresholds)
    counts = torch.zeros(len(thresholds), dtype=torch.int64, device=edges.device)
    for squared in _tiles(pairs, same):
        near = squared[squared < edges.max()]
        counts += torch.stack([(near < edge).sum() for edge in edges])
    return counts.tolist()


def different_at_ranks(pairs: PairSet, ranks: Sequence[int]) -> list[float]:
    """The squared distances at 0-based `ranks` among different-class pairs in rising order; +inf past the last.

    Radix selection: positive floats are ordered like the integers that share their bits. Each pass over the pairs
    counts, for every rank still open, the next 16 bits among the distances whose higher bits are settled: two passes
    for float32, whatever N is, exact under ties.
    """
    bits = 31 if pairs.rows.dtype == torch.float32 else 63
    ranks = list(ranks)
    found = {rank: (0, rank) for rank in ranks if rank < pairs.different}  # rank → settled bits, rank within them
    while bits > 0 and found:
        shift = max(0, bits - _RADIX)
        histograms = _histograms(pairs, {prefix for prefix, _ in found.values()}, bits, shift)
        for rank, (prefix, within) in found.items():
            below = histograms[prefix].cumsum(0)
            digit = min(int(torch.searchsorted(below, within, right=True)), len(below) - 1)
            before = int(below[digit - 1]) if digit else 0
            found[rank] = ((prefix << (bits - shift)) | digit, within - before)
        bits = shift
    return [_float_of(found[rank][0], pairs.rows.dtype) if rank in found else math.inf for rank in ranks]


def _histograms(pairs: PairSet, prefixes: set[int], bits: int, shift: int) -> dict[int, Tensor]:
    """For each prefix: how often each value of the next bits occurs among distances that start with it."""
    width = 1 << (bits - shift)
    integer = torch.int32 if pairs.rows.dtype == torch.float32 else torch.int64
    counts = {prefix: torch.zeros(width, dtype=torch.int64, device=pairs.rows.device) for prefix in prefixes}
    beyond = (max(prefixes) + 1) << bits
    for squared in _tiles(pairs, same=False):
        keys = squared.view(integer).flatten()
        if beyond > torch.iinfo(integer).max:  # the first pass: every key counts, +inf above all finite ones
            counts[0] += torch.bincount(keys >> shift, minlength=width)
            continue
        keys = keys[keys < beyond]
        for prefix in prefixes:
            mine = keys[(keys >> bits) == prefix]
            counts[prefix] += torch.bincount((mine >> shift) & (width - 1), minlength=width)
    return counts


def _tiles(pairs: PairSet, same: bool) -> Iterator[Tensor]:
    """Tiles of squared distances, +inf where a pair is of the other kind; tiles without the wanted kind are skipped."""
    side = _TILE.get(pairs.rows.device.type, 4096)
    row_norms, column_norms = pairs.rows.square().sum(dim=1), pairs.columns.square().sum(dim=1)
    row_ends, column_ends = _ends(pairs.row_ids, side), _ends(pairs.column_ids, side)
    smallest = torch.finfo(pairs.rows.dtype).tiny  # instead of 0, whose sign bit may be set
    for i, (row_first, row_last) in enumerate(row_ends):
        rows = slice(i * side, (i + 1) * side)
        for j in range(i if pairs.one_set else 0, len(column_ends)):
            column_first, column_last = column_ends[j]
            shared = row_first <= column_last and column_first <= row_last
            uniform = row_first == row_last == column_first == column_last
            if (same and not shared) or (not same and uniform):
                continue
            columns = slice(j * side, (j + 1) * side)
            squared = torch.addmm(column_norms[columns], pairs.rows[rows], pairs.columns[columns].T, alpha=-2)
            squared.add_(row_norms[rows, None]).clamp_(min=smallest)
            if shared:
                wanted = (pairs.row_ids[rows, None] == pairs.column_ids[columns]) == same
                wanted = wanted.triu(1) if pairs.one_set and i == j else wanted
                squared.masked_fill_(~wanted, torch.inf)
            yield squared


def _ends(ids: Tensor, side: int) -> list[tuple[int, int]]:
    """First and last class of each tile's rows; the ids are sorted."""
    firsts, lasts = ids[::side], torch.cat([ids[side - 1 :: side], ids[-1:]])[: len(ids[::side])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _float_of(bits: int, dtype: torch.dtype) -> float:
    integer = torch.int32 if dtype == torch.float32 else torch.int64
    return float(torch.tensor(bits, dtype=integer).view(dtype))
