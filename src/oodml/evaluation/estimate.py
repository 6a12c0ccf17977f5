"""Means with their uncertainty: over repetitions (seeds, episodes), and over the classes of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError

_CHUNK = 2**24  # weights held at once by the bootstrap


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation and half width of the 95 % interval; the last two are NaN for a single value."""

    mean: float
    sd: float
    half_width: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if np.isnan(self.half_width) else f"{self.mean:.4f} ± {self.half_width:.4f}"


def estimate(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Mean with Student's t-interval over independent repetitions (seeds, episodes)."""
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise OodmlError("An estimate needs at least one value.")
    if x.size == 1:
        return Estimate(float(x[0]), float("nan"), float("nan"), 1)
    sd = float(x.std(ddof=1))
    return Estimate(float(x.mean()), sd, float(stats.t.ppf((1 + level) / 2, x.size - 1) * sd / np.sqrt(x.size)), x.size)


def share_interval(mean: float, half_width: float) -> tuple[float, float]:
    """The interval of a share (recall, AGS, …) cut to [0, 1]; Student's t has no bounds, and two seeds make it wide.

    A mean below 0, which AMI may have, stays inside, and NaN stays NaN.
    """
    return max(mean - half_width, min(0.0, mean)), min(mean + half_width, max(1.0, mean))


def share_text(mean: float, half_width: float, digits: int = 1) -> str:
    """A share in per cent with its 95 % interval: `85.0 ± 1.2`, or `97.2 [84.9–100.0]` where ± would leave [0, 1].

    Without an interval (a single value) the mean alone.
    """
    text = f"{100 * mean:.{digits}f}"
    if np.isnan(half_width):
        return text
    low, high = share_interval(mean, half_width)
    if (low, high) == (mean - half_width, mean + half_width):
        return f"{text} ± {100 * half_width:.{digits}f}"
    return f"{text} [{100 * low:.{digits}f}–{100 * high:.{digits}f}]"


def class_means(values: Tensor, ids: Tensor, names: list) -> dict[Any, float]:
    """Class name → mean over its queries; NaN values are left out, and classes that have no other values."""
    sums, counts = _sums(values, ids, len(names))
    means = (sums / counts).tolist()
    return {name: mean for name, mean, count in zip(names, means, counts.tolist(), strict=True) if count}


def group_means(values: Tensor, ids: Tensor, names: list, groups: Mapping[Any, str] | None) -> dict[str, float]:
    """Superclass → mean over its queries; `groups` maps each class name to its superclass."""
    if groups is None:
        raise OodmlError("No superclasses are known: pass superclasses={label: name} to evaluate or to this call.")
    if missing := [name for name in names if name not in groups]:
        raise OodmlError(f"{len(missing)} classes have no superclass, the first is {missing[0]!r}: name one for each.")
    titles = sorted({groups[name] for name in names})
    place = {title: i for i, title in enumerate(titles)}
    group_of = torch.tensor([place[groups[name]] for name in names], device=ids.device)
    return class_means(values, group_of[ids], titles)


def interval_over_classes(
    values: Tensor, ids: Tensor, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap of the mean over queries, where whole classes are drawn with replacement.

    Queries of one class are not independent, so drawing single queries would give too narrow an interval. The
    statistic of a draw is Σ_c w_c s_c / Σ_c w_c n_c for class sums s_c, class sizes n_c and w_c draws of each class.
    """
    if not 0 < level < 1 or draws < 1:
        raise OodmlError(f"level={level} and draws={draws}: give a level between 0 and 1 and at least one draw.")
    sums, counts = (each.cpu() for each in _sums(values, ids, int(ids.max()) + 1))
    sums, counts = sums[counts > 0], counts[counts > 0]
    classes = len(sums)
    if classes < 2:
        raise OodmlError(f"An interval over classes needs at least two classes with queries that count; got {classes}.")
    generator = torch.Generator().manual_seed(seed)
    means = []
    for part in torch.arange(draws).split(max(1, _CHUNK // classes)):
        chosen = torch.randint(classes, (len(part), classes), generator=generator)
        means.append(sums[chosen].sum(1) / counts[chosen].sum(1))
    tail = (1 - level) / 2
    low, high = torch.cat(means).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def _sums(values: Tensor, ids: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    valid = ~values.isnan()
    sums = torch.zeros(classes, dtype=torch.float64, device=values.device)
    counts = torch.zeros_like(sums)
    sums.index_add_(0, ids, values.nan_to_num(0.0))
    counts.index_add_(0, ids, valid.double())
    return sums, counts
