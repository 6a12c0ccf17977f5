"""The tensor functions under miners and losses against plain float64 formulas, with their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oodml._tensors import EPSILON, NOISE, distances, inner_products, masked_logsumexp, squared_distances, unit_rows


def rows(count: int = 7, dim: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_unit_rows() -> None:
    x = rows()
    torch.testing.assert_close(unit_rows(x), x / x.square().sum(1, keepdim=True).sqrt())
    assert torch.autograd.gradcheck(unit_rows, x.requires_grad_())


@pytest.mark.parametrize("size", [0.0, 1e-10, 1e-4, 1e4, 1e15])
def test_unit_rows_of_any_size_are_finite_with_their_gradients(size: float) -> None:
    x = (rows(dtype=torch.float32) * size).requires_grad_()
    y = unit_rows(x)
    y.sum().backward()
    assert torch.isfinite(x.grad).all()
    torch.testing.assert_close(y.norm(dim=1), torch.full((7,), float(size > 0)), rtol=1e-3, atol=0)


def exact(x: Tensor, anchors: int | None, squared: bool) -> Tensor:
    """Anchors on the left; on the right they are variables too, and the other rows constants."""
    right = x if anchors is None else torch.cat([x[:anchors], x[anchors:].detach()])
    d2 = (x[:anchors, None] - right[None]).square().sum(2)
    return d2 if squared else d2.clamp_min(EPSILON).sqrt()


@pytest.mark.parametrize("anchors", [None, 4])
@pytest.mark.parametrize("squared", [False, True])
def test_distance_matrices_and_their_gradients(anchors: int | None, squared: bool) -> None:
    x = rows().requires_grad_()
    found = (squared_distances if squared else distances)(x, anchors)
    expected = exact(x, anchors, squared)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    weights = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights.diagonal().zero_()
    for gradients in zip(*(torch.autograd.grad((m * weights).sum(), x) for m in (found, expected)), strict=True):
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_distances_of_unit_rows_are_those_between_directions(size: float) -> None:
    x = (size * rows() * torch.logspace(-2, 2, 7, dtype=torch.float64)[:, None]).requires_grad_()
    expected = exact(x / x.square().sum(1, keepdim=True).sqrt(), None, squared=False)
    found = distances(unit_rows(x))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    weights = torch.rand(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights.diagonal().zero_()
    gradients = [torch.autograd.grad((m * weights).sum(), x)[0] * x.norm(dim=1)[:, None] for m in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dim", [2, 128, 512])
def test_parallel_rows_are_within_what_counts_as_rounding(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for row in (torch.rand(1, dim, generator=generator), torch.randn(1, dim, generator=generator)):
        row = row * (0.2 + 2 * torch.rand(1024, 1, generator=generator))
        found = distances(unit_rows(row))
        assert found.max() < NOISE and found.min() >= 0.99e-4


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-10, 1e-4, 1e4, 1e15, 1e20, 1e37])
def test_distances_of_directions_of_any_size_are_finite_with_their_gradients(size: float) -> None:
    x = rows(dtype=torch.float32)
    x[0] *= size
    x.requires_grad_()
    found = distances(unit_rows(x))
    double = x.detach().double().requires_grad_()
    expected = exact(double / double.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12), None, squared=False)
    gradient, other = (torch.autograd.grad(m.square().sum(), y)[0] for m, y in ((found, x), (expected, double)))
    assert torch.isfinite(found).all() and torch.isfinite(gradient).all()
    if 1e-10 <= size <= 1e15:  # beyond, a norm or its square leaves the range of float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(gradient[1:].double(), other[1:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(size * gradient[0].double(), size * other[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("anchors", [None, 4])
def test_inner_products_and_their_gradient(anchors: int | None) -> None:
    x = rows().requires_grad_()
    right = x if anchors is None else torch.cat([x[:anchors], x[anchors:].detach()])
    expected = x[:anchors] @ right.T
    weights = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(inner_products(x, anchors), expected)
    found = torch.autograd.grad((inner_products(x, anchors) * weights).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad((expected * weights).sum(), x))


def test_equal_rows_are_exactly_the_least_distance_apart_and_do_not_move() -> None:
    x = torch.nn.functional.normalize(rows(dtype=torch.float32))
    x[3] = x[1]
    d = distances(x.requires_grad_())
    assert d[1, 3] == d[3, 1] == torch.tensor(EPSILON).sqrt()
    (gradient,) = torch.autograd.grad(d[1, 3], x)
    assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_masked_logsumexp_and_its_gradient(dtype: torch.dtype) -> None:
    values = rows(dtype=dtype).requires_grad_()
    mask = values > 0
    mask[2] = False
    found = masked_logsumexp(values, mask)
    assert torch.isfinite(found).all() and found[2] < -1e30
    kept = mask.any(1)
    expected = (values.exp() * mask).sum(1)[kept].log()
    torch.testing.assert_close(found[kept], expected)
    gradients = [torch.autograd.grad(f.sum(), values)[0] for f in (found[kept], expected)]
    torch.testing.assert_close(*gradients)
    assert torch.isfinite(torch.autograd.grad(masked_logsumexp(values, mask).relu().sum(), values)[0]).all()


@pytest.mark.compiler
@pytest.mark.parametrize("function", [inner_products, squared_distances, distances])
@pytest.mark.parametrize("anchors", [None, 4])
def test_compiled_gradients(function: Callable[..., Tensor], anchors: int | None) -> None:
    """torch 2.11 lost or spoilt them where a result was written in place, and where a diagonal was a view."""
    x = rows(dtype=torch.float32).requires_grad_()
    weights = torch.randn(7, 7, generator=torch.Generator().manual_seed(1))[:anchors]

    def weighed(x: Tensor) -> Tensor:
        return (function(x, anchors) * weights).sum()

    found, expected = torch.compile(weighed, dynamic=False)(x), weighed(x)
    torch.testing.assert_close(*(torch.autograd.grad(value, x) for value in (found, expected)))
    torch.compiler.reset()
