"""Do splits depend on the backbone they were built with? (ooDML, supplement A)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oodml._errors import OodmlError
from oodml.shift.measure import Ruler
from oodml.shift.split import Split


@dataclass(frozen=True)
class Agreement:
    """How well two feature spaces agree about the same splits.

    rank_correlation  Spearman's ρ of the distances of all splits of both series, measured in both spaces
    curve_gap         largest difference of the distances scaled to [0, 1], over the same splits
    same_side         per pair of splits (first of A with first of B, …): share of the common classes on the same side
    same_side_chance  what independent assignments with these side sizes would give
    """

    rank_correlation: float
    curve_gap: float
    same_side: list[float]
    same_side_chance: list[float]
    fids_a: list[float]  # distances in space A of A's splits, then of B's
    fids_b: list[float]


def agreement(splits_a: Sequence[Split], ruler_a: Ruler, splits_b: Sequence[Split], ruler_b: Ruler) -> Agreement:
    """Compare two series of splits that were built from the same classes in two feature spaces."""
    from scipy.stats import spearmanr

    every = [*splits_a, *splits_b]
    if len(every) < 3:
        raise OodmlError(f"Ranks of {len(every)} splits say nothing; compare at least three in all.")
    a = [ruler_a.fid(split) for split in every]
    b = [ruler_b.fid(split) for split in every]
    shares = [_same_side(first, second) for first, second in zip(splits_a, splits_b, strict=False)]
    return Agreement(
        rank_correlation=float(spearmanr(a, b).statistic),
        curve_gap=float(np.abs(_scaled(a) - _scaled(b)).max()),
        same_side=[share for share, _ in shares],
        same_side_chance=[chance for _, chance in shares],
        fids_a=a,
        fids_b=b,
    )


def _scaled(values: Sequence[float]) -> np.ndarray:
    low, high = min(values), max(values)
    return (np.asarray(values) - low) / (high - low) if high > low else np.zeros(len(values))


def _same_side(a: Split, b: Split) -> tuple[float, float]:
    """Share of common classes on the same side, and its expectation under independence.

    Which side is called "train" stops mattering as the sides drift apart, so the better of the two namings counts.
    """
    common = sorted((set(a.train) | set(a.test)) & (set(b.train) | set(b.test)))
    if not common:
        return float("nan"), float("nan")
    in_a, in_b = (np.isin(common, split.train) for split in (a, b))
    share = float(np.mean(in_a == in_b))
    p, q = float(in_a.mean()), float(in_b.mean())
    chance = p * q + (1 - p) * (1 - q)
    return max(share, 1 - share), max(chance, 1 - chance)
