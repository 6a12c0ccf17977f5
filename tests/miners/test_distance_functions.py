"""The tensor functions under miners and losses against plain float64 formulas, with their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oodml.miners._directions import direction_distances
from oodml.miners._distances import (
    EPSILON,
    NOISE,
    distance_matrix,
    except_where,
    gram,
    squared_distance_matrix,
    unit_rows,
    unit_rows_at_once,
    where_else,
)


def rows(count: int = 7, dim: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_unit_rows() -> None:
    x = rows()
    torch.testing.assert_close(unit_rows(x), x / x.square().sum(1, keepdim=True).sqrt())
    assert torch.autograd.gradcheck(unit_rows, x.requires_grad_())


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_unit_rows_at_once(size: float) -> None:
    """The form for a GPU, which a CPU can run too: the same rows, and the same gradients."""
    x = (size * rows()).requires_grad_()
    weights = rows().flip(0)
    found, expected = unit_rows_at_once(x), unit_rows(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        *(size * torch.autograd.grad((unit * weights).sum(), x)[0] for unit in (found, expected))
    )


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
    found = (squared_distance_matrix if squared else distance_matrix)(x, anchors)
    expected = exact(x, anchors, squared)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    weights = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights.diagonal().zero_()
    for gradients in zip(*(torch.autograd.grad((m * weights).sum(), x) for m in (found, expected)), strict=True):
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("anchors", [None, 4])
@pytest.mark.parametrize("matrix", [distance_matrix, squared_distance_matrix])
def test_the_short_gradient_is_that_of_the_rows_before_they_were_divided_by_their_norms(matrix, anchors) -> None:
    x = rows().requires_grad_()
    weights = torch.rand(anchors or 7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    short, full = (
        torch.autograd.grad((matrix(unit_rows(x), anchors, unit) * weights).sum(), x) for unit in (True, False)
    )
    torch.testing.assert_close(short, full)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_distances_of_directions_are_those_of_unit_rows(size: float) -> None:
    x = (size * rows() * torch.logspace(-2, 2, 7, dtype=torch.float64)[:, None]).requires_grad_()
    expected = exact(x / x.square().sum(1, keepdim=True).sqrt(), None, squared=False)
    found = direction_distances(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    weights = torch.rand(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights.diagonal().zero_()
    gradients = [torch.autograd.grad((m * weights).sum(), x)[0] * x.norm(dim=1)[:, None] for m in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dim", [2, 128, 512])
@pytest.mark.parametrize("measure", [direction_distances, lambda x: distance_matrix(unit_rows(x))])
def test_parallel_rows_are_within_what_counts_as_rounding(measure: Callable[..., Tensor], dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for row in (torch.rand(1, dim, generator=generator), torch.randn(1, dim, generator=generator)):
        found = measure(row * (0.2 + 2 * torch.rand(1024, 1, generator=generator)))
        assert found.max() < NOISE and found.min() >= 0.99e-4


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-10, 1e-4, 1e4, 1e15, 1e20, 1e37])
def test_distances_of_directions_of_any_size_are_finite_with_their_gradients(size: float) -> None:
    x = rows(dtype=torch.float32)
    x[0] *= size
    x.requires_grad_()
    found, expected = direction_distances(x), distance_matrix(unit_rows(x))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    each, other = (torch.autograd.grad(m.square().sum(), x)[0] for m in (found, expected))
    assert torch.isfinite(each).all()
    torch.testing.assert_close(each[1:], other[1:], rtol=1e-4, atol=1e-4)
    if 1e-10 <= size <= 1e15:  # beyond, a norm or its square leaves the range of float32
        torch.testing.assert_close(size * each[0], size * other[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("anchors", [None, 4])
def test_inner_products_and_their_gradient(anchors: int | None) -> None:
    x = rows().requires_grad_()
    right = x if anchors is None else torch.cat([x[:anchors], x[anchors:].detach()])
    expected = x[:anchors] @ right.T
    weights = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(gram(x, anchors), expected)
    found = torch.autograd.grad((gram(x, anchors) * weights).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad((expected * weights).sum(), x))


@pytest.mark.parametrize("measure", [distance_matrix, direction_distances])
def test_equal_rows_are_exactly_the_least_distance_apart_and_do_not_move(measure: Callable[..., Tensor]) -> None:
    x = torch.nn.functional.normalize(rows(dtype=torch.float32))
    x[3] = x[1]
    d = measure(x.requires_grad_())
    assert d[1, 3] == d[3, 1] == torch.tensor(EPSILON).sqrt()
    (gradient,) = torch.autograd.grad(d[1, 3], x)
    assert not gradient.any()


def test_a_trace_without_values_leaves_nothing_behind() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode() as mode:
        values = mode.from_tensor(rows())
        assert isinstance(where_else(values > 0, values, 0.75), FakeTensor)
    found = where_else(rows() > 0, rows(), 0.75)
    assert not isinstance(found, FakeTensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_else_and_except_where(dtype: torch.dtype) -> None:
    values = rows(dtype=dtype).requires_grad_()
    mask = values > 0
    for otherwise in (0.0, torch.inf, -torch.inf):
        found = where_else(mask, values, otherwise)
        assert found.dtype == dtype
        assert torch.equal(found, values.masked_fill(~mask, otherwise))
        assert torch.equal(except_where(mask, values, otherwise), values.masked_fill(mask, otherwise))
    with torch.inference_mode():
        where_else(mask, values, 0.25)
    where_else(mask, values, 0.25).sum().backward()  # a constant made in inference mode serves in training too
    assert torch.equal(values.grad, mask.to(dtype))


@pytest.mark.compiler
@pytest.mark.parametrize("function", [gram, squared_distance_matrix, distance_matrix])
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
