"""What may be handed in, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oodml import OodmlError
from oodml.evaluation._inputs import as_class_ids, as_embeddings, as_tensors


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.ones((3, 2)), torch.float64),
        (np.ones((3, 2), dtype=np.float16), torch.float32),
        (torch.ones(3, 2, dtype=torch.bfloat16), torch.float32),
        (torch.ones(3, 2, requires_grad=True), torch.float32),
        ([[1, 2], [3, 4], [5, 6]], torch.float32),
        (np.ones((2, 3), order="F").T, torch.float64),
    ],
)
def test_embeddings_of_every_kind_become_a_plain_float_tensor(given, dtype):
    x = as_embeddings(given)
    assert x.dtype == dtype and x.shape == (3, 2) and not x.requires_grad


@pytest.mark.parametrize(
    ("labels", "ids", "names"),
    [
        (["b", "a", "b"], [1, 0, 1], ["a", "b"]),
        (np.array([7, -3, 7]), [1, 0, 1], [-3, 7]),
        (torch.tensor([9, 2, 9]), [1, 0, 1], [2, 9]),
        ((True, False, True), [1, 0, 1], [False, True]),
        (torch.tensor([2, 1, 2], dtype=torch.int32), [1, 0, 1], [1, 2]),
    ],
)
def test_labels_of_every_kind_become_contiguous_ids(labels, ids, names):
    found, classes = as_class_ids(labels)
    assert found.dtype == torch.int64 and found.tolist() == ids and classes == names


@pytest.mark.filterwarnings("error")
def test_reversed_read_only_and_unsigned_arrays_keep_their_values():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(as_embeddings(x[:, ::-1]).numpy(), x[:, ::-1])
    x.setflags(write=False)
    assert np.array_equal(as_embeddings(x).numpy(), x)
    assert np.array_equal(as_embeddings(x.astype(np.uint16)).numpy(), x)


def test_a_float_array_is_not_copied():
    x = np.ones((3, 2), dtype=np.float32)
    assert as_embeddings(x).data_ptr() == x.ctypes.data


@pytest.mark.parametrize(
    ("embeddings", "labels", "words"),
    [
        ([[1.0], [np.nan], [2.0], [np.inf]], [0, 1, 2, 3], r"2 rows of embeddings with NaN or Inf: rows 1, 3\."),
        (np.full((2, 2), 1e30), [0, 1], "overflows: rows 0, 1"),
        (np.zeros((0, 3)), [], "empty"),
        (np.zeros((3, 0)), [0, 1, 2], "empty"),
        (np.zeros(3), [0, 1, 2], r"expected \(N, d\)"),
        (np.zeros((2, 2)), [0, 1, 2], "2 embeddings but 3 labels"),
        (np.zeros((2, 2)), [[0], [1]], r"shape \(2, 1\)"),
        (np.zeros((2, 2)), [0.5, np.nan], "NaN or None"),
        (np.zeros((2, 2)), [None, 1], "cannot be sorted"),
        (np.zeros((2, 2), dtype=complex), [0, 1], "complex"),
        ([["a", "b"]], [0], "numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], "numbers"),
    ],
)
def test_bad_input_is_named(embeddings, labels, words):
    with pytest.raises(OodmlError, match=words):
        as_tensors(embeddings, labels)


def test_many_bad_rows_are_counted_and_the_first_ten_named():
    x = np.ones((50, 2))
    x[10:40] = np.nan
    with pytest.raises(OodmlError, match=r"30 rows .* rows 10, 11, .*, 19, …"):
        as_embeddings(x)
