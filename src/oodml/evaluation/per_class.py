"""Scores of single classes and super-classes, and a bootstrap interval over classes, from values of single queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError

_CHUNK = 2**24  # weights held at once by the bootstrap


def class_means(values: Tensor, ids: Tensor, names: list) -> dict[Any, float]:
    """Class name → mean over its queries; NaN values do not count, and neither do classes that have nothing else."""
    sums, counts = _sums(values, ids, len(names))
    means = (sums / counts).tolist()
    return {name: mean for name, mean, count in zip(names, means, counts.tolist(), strict=True) if count}


def group_means(values: Tensor, ids: Tensor, names: list, groups: Mapping[Any, str] | None) -> dict[str, float]:
    """Super-class → mean over its queries; `groups` maps each class name to its super-class."""
    if groups is None:
        raise OodmlError("No super-classes are known: pass superclasses={label: name} to evaluate or to this call.")
    if missing := [name for name in names if name not in groups]:
        raise OodmlError(f"{len(missing)} classes have no super-class, the first is {missing[0]!r}: name one for each.")
    titles = sorted({groups[name] for name in names})
    place = {title: i for i, title in enumerate(titles)}
    group_of = torch.tensor([place[groups[name]] for name in names], device=ids.device)
    return class_means(values, group_of[ids], titles)


def interval_over_classes(
    values: Tensor, ids: Tensor, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap of the mean over queries, where whole classes are drawn with replacement.

    Queries of one class share their fate, so drawing single queries would promise too much. The statistic of a draw
    is Σ_c w_c s_c / Σ_c w_c n_c for class sums s_c, class sizes n_c and the number of times w_c each class was drawn.
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
