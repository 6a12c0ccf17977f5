"""What the gradients written by hand here have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from oodml._errors import OodmlError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that keeps intermediate results, so that its own derivative would be wrong: it is refused."""

    @functools.wraps(backward)
    def once(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise OodmlError(
                "The gradients of this package's objectives cannot be differentiated again (create_graph=True, "
                "Hessians, gradient penalties): they are written for one backward pass."
            )
        return backward(ctx, *gradients)

    return once
