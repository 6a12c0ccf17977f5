"""The Aggregated Generalisation Score of ooDML (Milbich et al. 2021, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oodml._errors import OodmlError


def ags_weights(fids: Sequence[float]) -> NDArray[np.float64]:
    """What each split counts in the score: AGS = Σ weight · score, in the order given; the weights sum to 1.

    x_i = (FID_i − min) / (max − min), sorted; the trapezoidal rule gives a split half the gap to either neighbour.
    """
    x = np.asarray(fids, dtype=np.float64)
    if not np.isfinite(x).all():
        raise OodmlError("AGS needs finite FIDs: measure the shift of every split first.")
    if np.unique(x).size < 2:
        raise OodmlError(
            f"AGS integrates over the shift and needs at least two different FIDs, got {np.unique(x).size}."
        )
    order = np.argsort(x, kind="stable")
    gaps = np.diff(x[order]) / (x.max() - x.min())
    weights = np.empty_like(x)
    weights[order] = (np.append(gaps, 0) + np.insert(gaps, 0, 0)) / 2
    return weights


def ags(fids: Sequence[float], scores: Sequence[float]) -> float:
    """Area under the curve of a score against the shift: one number over all splits.

    The FIDs are sorted and min-max normalised to x in [0, 1]; AGS is the trapezoidal integral of the score over x, so
    it stays in the range of the score. The scale of the FID does not matter, its spacing does.
    """
    y = np.asarray(scores, dtype=np.float64)
    if y.ndim != 1 or y.size != np.size(fids):
        raise OodmlError(f"AGS needs one score for each FID, got {np.size(fids)} FIDs and {y.size} scores.")
    if not np.isfinite(y).all():
        raise OodmlError("AGS needs finite scores: a split without a result cannot be summed up, run it first.")
    return float(ags_weights(fids) @ y)
