"""Checked tensors from what a user gives: arrays, tensors or lists; labels of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError

LARGEST_NORM = 1e18  # squared distances of larger rows overflow float32
_ROWS_NAMED = 10


def as_tensors(embeddings: Any, labels: Any, what: str = "embeddings") -> tuple[Tensor, Tensor, list]:
    """Checked embeddings, class ids and class names.

    Args:
        embeddings: (N, d) array, tensor or nested list; float64 is kept, every other type becomes float32.
        labels: N labels of any sortable kind (integers, text, …), as array, tensor or list.
        what: the name of the embeddings in an error ("gallery", …).

    Returns:
        embeddings (N, d) on their own device; ids (N,) int64 on the same device, contiguous 0 … C−1 in the sorted
        order of the labels; the C labels in that order.
    """
    x = as_embeddings(embeddings, what)
    ids, names = as_class_ids(labels, x.device)
    check_length(len(ids), len(x), "labels", what)
    return x, ids, names


def as_embeddings(embeddings: Any, what: str = "embeddings") -> Tensor:
    """(N, d) float32 or float64, finite and not so large that squared distances overflow; a view where possible."""
    try:
        x = embeddings.detach() if isinstance(embeddings, Tensor) else _from_array(np.asarray(embeddings))
    except (TypeError, ValueError) as error:
        raise OodmlError(f"{what} cannot be read as an array of numbers ({error}): give an (N, d) array.") from error
    if x.is_complex():
        raise OodmlError(f"{what} are complex numbers; give real ones.")
    if x.ndim != 2:
        raise OodmlError(f"{what} have shape {tuple(x.shape)}; expected (N, d), one row per image.")
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise OodmlError(f"{what} are empty (shape {tuple(x.shape)}); give at least one row and one column.")
    x = x if x.dtype == torch.float64 else x.float()
    norms = torch.linalg.vector_norm(x, dim=1)
    if not bool((norms < LARGEST_NORM).all()):
        _raise_for_rows(x, norms, what)
    return x


def _from_array(array: np.ndarray) -> Tensor:
    """A tensor on the array's memory, or on a copy where torch cannot share it (reversed, read-only, other types)."""
    if not np.iscomplexobj(array):
        array = np.ascontiguousarray(array, dtype=np.float64 if array.dtype == np.float64 else np.float32)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_class_ids(labels: Any, device: torch.device | str = "cpu") -> tuple[Tensor, list]:
    """Contiguous int64 ids on `device`, in the sorted order of the labels, and the labels themselves."""
    if isinstance(labels, Tensor):
        _check_label_shape(tuple(labels.shape))
        names, ids = torch.unique(labels.detach(), return_inverse=True)
        _check_label_names(listed := names.tolist())
        return ids.to(device), listed
    values = np.asarray(labels)
    _check_label_shape(values.shape)
    try:
        unique, inverse = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise OodmlError(f"labels mix kinds that cannot be sorted ({error}): use all integers or all text.") from error
    _check_label_names(listed := unique.tolist())
    return torch.as_tensor(inverse.reshape(-1).astype(np.int64), device=device), listed


def as_joint_ids(
    labels: Any, gallery_labels: Any, n: int, n_gallery: int, device: torch.device
) -> tuple[Tensor, Tensor, list]:
    """Class ids of n queries and of n_gallery gallery rows, numbered together, and the names of the classes."""
    check_length(len(labels), n, "labels", "embeddings")
    check_length(len(gallery_labels), n_gallery, "gallery_labels", "gallery rows")
    first, second = (np.asarray(each.cpu() if isinstance(each, Tensor) else each) for each in (labels, gallery_labels))
    if (first.dtype.kind in "US") != (second.dtype.kind in "US"):  # concatenated, numbers would become text
        raise OodmlError(
            f"labels are {first.dtype} but gallery_labels {second.dtype}, so none are equal: use one kind for both."
        )
    ids, names = as_class_ids(np.concatenate([first, second]), device)
    return ids[:n], ids[n:], names


def check_length(given: int, expected: int, what: str, of: str) -> None:
    if given != expected:
        raise OodmlError(f"{expected} {of} but {given} {what}: give exactly one label per row.")


def _check_label_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise OodmlError(f"labels have shape {shape}; expected one label per row, shape (N,).")


def _check_label_names(names: list) -> None:
    if any(name is None or name != name for name in names):  # NaN is the only value unlike itself
        raise OodmlError("labels contain NaN or None: every row needs a label.")


def _raise_for_rows(x: Tensor, norms: Tensor, what: str) -> None:
    broken = ~torch.isfinite(x).all(dim=1)
    kind = "NaN or Inf"
    if not bool(broken.any()):
        broken, kind = ~(norms < LARGEST_NORM), f"a norm above {LARGEST_NORM:g}, whose square overflows"
    rows = broken.nonzero().flatten().tolist()
    shown = ", ".join(map(str, rows[:_ROWS_NAMED])) + (", …" if len(rows) > _ROWS_NAMED else "")
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    raise OodmlError(
        f"{count} of {what} with {kind}: rows {shown}. Remove them, or repair the model or file that they come from."
    )
