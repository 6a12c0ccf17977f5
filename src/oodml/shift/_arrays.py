"""Checks of feature arrays and labels, with errors that name the row and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np

from oodml._errors import OodmlError


def feature_rows(features: Any, name: str = "features", at_least: int = 1) -> np.ndarray:
    """`features` as a finite (N, D) array of floats; a tensor on any device is accepted."""
    if hasattr(features, "detach"):
        features = features.detach().cpu()
        half = features.is_floating_point() and features.itemsize < 4
        features = (features.float() if half else features).numpy()  # NumPy knows no bfloat16
    rows = np.asarray(features)
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.number) or np.iscomplexobj(rows):
        raise OodmlError(
            f"{name} must be numbers, one row an image: shape (N, D); got shape {rows.shape} of {rows.dtype}."
        )
    if len(rows) < at_least or rows.shape[1] == 0:
        raise OodmlError(
            f"{name} needs at least {at_least} rows and one column to be compared as a set; got shape {rows.shape}."
        )
    if not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is what is looked for
        bad = np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise OodmlError(
            f"{name} has NaN or infinite values in {len(bad)} of {len(rows)} rows (the first is row {bad[0]}). "
            "Extract the features of those images again, or leave the rows out."
        )
    return rows


def same_width(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape[1] != b.shape[1]:
        raise OodmlError(
            f"The two feature arrays have {a.shape[1]} and {b.shape[1]} dimensions: "
            "extract both with the same backbone, then compare them."
        )
