"""The Fréchet distance against scipy, closed forms and its own axioms."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import oodml
from oodml.shift import frechet
from oodml.shift.frechet import Gaussian


def by_sqrtm(a: np.ndarray, b: np.ndarray) -> float:
    """The definition, in float64, with scipy's matrix square root."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    one, two = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = scipy.linalg.sqrtm(one @ two)
    apart = a.mean(axis=0) - b.mean(axis=0)
    return float(apart @ apart + np.trace(one) + np.trace(two) - 2 * np.trace(root).real)


def sample(n: int, dims: int, seed: int, spread: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((dims, dims)) * np.arange(1, dims + 1) ** -0.7
    return spread * rng.standard_normal((n, dims)) @ mix + rng.standard_normal(dims)


@pytest.mark.parametrize(("n", "m", "dims"), [(300, 200, 20), (50, 70, 64), (500, 40, 64), (1000, 900, 1), (3, 2, 5)])
def test_agrees_with_sqrtm(n: int, m: int, dims: int) -> None:
    a, b = sample(n, dims, 0), sample(m, dims, 1, 1.7)
    assert oodml.fid(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-4)


@pytest.mark.parametrize(("n", "m"), [(200, 180), (200, 40), (30, 40), (90, 70)])
def test_routes_for_large_matrices_agree_with_sqrtm(monkeypatch: pytest.MonkeyPatch, n: int, m: int) -> None:
    monkeypatch.setattr(frechet, "SVD_LIMIT", 8)  # covariances, Cholesky and eigenvalues, at a size scipy can check
    a, b = sample(n, 48, 2), sample(m, 48, 3, 0.6)
    assert oodml.fid(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-4)


def test_singular_covariances_on_the_route_for_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = sample(300, 32, 4), sample(200, 32, 5)
    a[:, [3, 30]] = b[:, [3, 17]] = 0.0  # dead features, some in one set only
    exact = oodml.fid(a, b)
    monkeypatch.setattr(frechet, "SVD_LIMIT", 8)
    assert oodml.fid(a, b) == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx(by_sqrtm(a, b), rel=1e-4)


def test_sets_without_any_spread_on_the_route_for_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frechet, "SVD_LIMIT", 8)
    a, dead = sample(300, 32, 4), np.zeros((200, 32))
    assert oodml.fid(dead, dead + 1) == pytest.approx(32)
    assert oodml.fid(dead, a) == pytest.approx(oodml.fid(a, dead)) == pytest.approx(by_sqrtm(a, dead))


def test_covariances_are_summed_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sample(100, 20, 6).astype(np.float32)
    monkeypatch.setattr(frechet, "SVD_LIMIT", 4)
    monkeypatch.setattr(frechet, "_BLOCK", 33)
    np.testing.assert_allclose(Gaussian.of_rows(rows).covariance, np.cov(rows.astype(np.float64), rowvar=False))


def test_closed_form_of_axis_aligned_gaussians() -> None:
    mean = np.array([3.0, -1.0, 0.5])
    one, two = np.array([4.0, 1.0, 9.0]), np.array([1.0, 16.0, 9.0])
    rng = np.random.default_rng(0)
    base = rng.standard_normal((4000, 3))
    base -= base.mean(axis=0)
    base = base @ np.linalg.inv(np.linalg.cholesky(np.cov(base, rowvar=False))).T  # sample covariance exactly I
    expected = mean @ mean + np.square(np.sqrt(one) - np.sqrt(two)).sum()
    assert oodml.fid(base * np.sqrt(one), base * np.sqrt(two) + mean) == pytest.approx(expected, rel=1e-10)


def test_closed_form_of_rotated_gaussians() -> None:
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    one = turn @ np.diag([1, 2, 3, 4, 5, 6.0]) @ turn.T
    two = turn @ np.diag([6, 5, 4, 3, 2, 1.0]) @ turn.T  # they commute
    expected = np.square(np.sqrt(np.arange(1, 7)) - np.sqrt(np.arange(6, 0, -1))).sum()
    got = frechet.frechet(Gaussian(np.zeros(6), covariance=one), Gaussian(np.zeros(6), covariance=two))
    assert got == pytest.approx(expected, rel=1e-10)


def test_a_shift_of_the_mean_alone_counts_squared() -> None:
    rows = sample(40, 100, 7)
    assert oodml.fid(rows, rows + 0.5) == pytest.approx(100 * 0.25, rel=1e-9)


@given(st.integers(2, 30), st.integers(2, 30), st.integers(1, 20), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_axioms(n: int, m: int, dims: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, dims)), 2 * rng.standard_normal((m, dims)) + 1
    value = oodml.fid(a, b)
    assert isinstance(value, float)
    assert value >= 0
    assert oodml.fid(b, a) == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert oodml.fid(a, a.copy()) == 0
    assert oodml.fid(a, a[::-1].copy()) == pytest.approx(0, abs=1e-8)
    assert oodml.fid(a[rng.permutation(n)], b) == pytest.approx(value, rel=1e-9, abs=1e-9)


def test_far_from_the_origin_precision_is_kept() -> None:
    a, b = sample(60, 30, 8), sample(50, 30, 9)
    assert oodml.fid(a + 1e4, b + 1e4) == pytest.approx(oodml.fid(a, b), rel=1e-6)


def test_tensors_and_integers_are_accepted() -> None:
    import torch

    a, b = sample(20, 4, 10).astype(np.float32), sample(20, 4, 11).astype(np.float32)
    assert oodml.fid(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(oodml.fid(a, b))
    halves = [torch.from_numpy(rows).bfloat16() for rows in (a, b)]  # which NumPy does not know
    assert oodml.fid(*halves) == pytest.approx(oodml.fid(*(rows.float() for rows in halves)))
    assert oodml.kid(*halves) == pytest.approx(oodml.kid(*(rows.float() for rows in halves)))
    assert oodml.fid([[1, 2], [3, 4]], [[1, 2], [3, 4]]) == 0


def test_hundred_class_means_take_milliseconds() -> None:
    a, b = sample(100, 2048, 12), sample(100, 2048, 13)
    oodml.fid(a, b)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        oodml.fid(a, b)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.5  # 5 ms on a quiet machine, 10 s by sqrtm


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (np.zeros((5, 3)), np.zeros((5, 4)), "same backbone"),
        (np.zeros((1, 3)), np.zeros((5, 3)), "at least 2 rows"),
        (np.zeros(5), np.zeros((5, 3)), "one row per image"),
        (np.full((5, 3), np.nan), np.zeros((5, 3)), "NaN or infinite"),
        (np.zeros((5, 3)), np.full((5, 3), np.inf), "NaN or infinite"),
        (np.array([["a", "b"], ["c", "d"]]), np.zeros((5, 2)), "must be numbers"),
    ],
)
def test_bad_input_is_named(a: np.ndarray, b: np.ndarray, told: str) -> None:
    with pytest.raises(oodml.OodmlError, match=told):
        oodml.fid(a, b)


def test_the_bad_row_is_named() -> None:
    rows = np.zeros((6, 3), dtype=np.float32)
    rows[4, 1] = np.nan
    with pytest.raises(oodml.OodmlError, match=r"1 of 6 rows \(the first is row 4"):
        oodml.fid(rows, rows)
