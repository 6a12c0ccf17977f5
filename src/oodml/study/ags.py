"""The Aggregated Generalisation Score of ooDML (Milbich et al. 2021, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oodml._errors import OodmlError


def ags(fids: Sequence[float], scores: Sequence[float]) -> float:
    """Area under the curve of a score against the shift: one number over all splits.

    The FIDs are sorted and min-max normalised to x in [0, 1]; AGS is the trapezoidal integral of the score over x, so
    it stays in the range of the score. The scale of the FID does not matter, its spacing does.
    """
    x, y = np.asarray(fids, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise OodmlError(f"AGS needs one score for each FID, got {x.size} FIDs and {y.size} scores.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise OodmlError("AGS needs finite FIDs and scores: a split without a result cannot be summed up, run it first.")
    if np.unique(x).size < 2:
        raise OodmlError(f"AGS integrates over the shift and needs at least two different FIDs, got {np.unique(x).size}.")
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    x = (x - x[0]) / (x[-1] - x[0])
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))
