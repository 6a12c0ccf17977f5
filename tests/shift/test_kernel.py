"""The kernel distance against a slow sum over pairs, and its standard error against repeated samples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import oodml


def by_pairs(a: np.ndarray, b: np.ndarray) -> float:
    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return float((x @ y / len(x) + 1) ** 3)

    n, m = len(a), len(b)
    within_a = sum(kernel(a[i], a[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    within_b = sum(kernel(b[i], b[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return within_a + within_b - 2 * sum(kernel(x, y) for x in a for y in b) / (n * m)


def by_leaving_out(a: np.ndarray, b: np.ndarray) -> float:
    variance = 0.0
    for rows, value in (
        (a, lambda rest: by_pairs(rest, b)),
        (b, lambda rest: by_pairs(a, rest)),
    ):
        values = np.array([value(np.delete(rows, i, axis=0)) for i in range(len(rows))])
        variance += (len(rows) - 1) / len(rows) * np.square(values - values.mean()).sum()
    return float(np.sqrt(variance))


def test_value_and_error_agree_with_the_slow_forms() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((13, 6)), rng.standard_normal((9, 6)) + 0.4
    got = oodml.kid(a, b)
    assert got == pytest.approx(by_pairs(a, b), rel=1e-10)
    assert got.standard_error == pytest.approx(by_leaving_out(a, b), rel=1e-9)


def test_blocks_do_not_change_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    from oodml.shift import kernel

    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((50, 6)), rng.standard_normal((41, 6))
    whole = oodml.kid(a, b)
    monkeypatch.setattr(kernel, "_BLOCK", 7)
    assert oodml.kid(a, b) == pytest.approx(whole, rel=1e-12)


def test_unbiased_and_error_of_the_right_size() -> None:
    rng = np.random.default_rng(2)
    draws = [oodml.kid(rng.standard_normal((40, 8)), rng.standard_normal((30, 8))) for _ in range(300)]
    values = np.array(draws)
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(len(values))  # zero on average: no bias at 40 samples
    shifted = [oodml.kid(rng.standard_normal((60, 8)), rng.standard_normal((60, 8)) + 1) for _ in range(200)]
    told = np.mean([value.standard_error for value in shifted])
    assert told == pytest.approx(np.std(shifted), rel=0.25)


def test_large_sets_are_reduced_with_a_seed() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((500, 4)), rng.standard_normal((400, 4)) + 0.5
    reduced = oodml.kid(a, b, max_rows=100)
    assert reduced == oodml.kid(a, b, max_rows=100)
    assert reduced != oodml.kid(a, b, max_rows=100, seed=1)
    assert reduced == pytest.approx(oodml.kid(a, b, max_rows=None), abs=4 * reduced.standard_error)


def test_it_is_a_float_that_shows_and_keeps_its_error() -> None:
    rng = np.random.default_rng(4)
    value = oodml.kid(rng.standard_normal((10, 4)), rng.standard_normal((10, 4)))
    assert isinstance(value, float)
    assert "±" in repr(value)
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert again.standard_error == value.standard_error


def test_bad_input_is_named() -> None:
    with pytest.raises(oodml.OodmlError, match="at least 3 rows"):
        oodml.kid(np.zeros((2, 3)), np.zeros((5, 3)))
    with pytest.raises(oodml.OodmlError, match="max_rows"):
        oodml.kid(np.zeros((5, 3)), np.zeros((5, 3)), max_rows=1)
