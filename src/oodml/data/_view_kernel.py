# mypy: ignore-errors
"""Views of images of any size in one GPU kernel, straight from the flat pixel store (see `augment.view_padded`).

Every output pixel is the triangle-weighted sum of the few source pixels under it: no padding, no products with zero, no
intermediate image. Imported only where Triton is installed, as it is with torch for CUDA on Linux.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oodml.data.augment import Views

_TILE = 16  # rows and columns of the output that one program computes


def view_packed(pixels: Tensor, starts: Tensor, pitches: Tensor, views: Views, size: int) -> Tensor:
    """(b, 3, size, size) float32 in [0, 1], channels last.

    Args:
        pixels: all images, flat uint8, RGB by pixel; a row of an image takes `pitches` bytes.
        starts, pitches: (b,) int64, in bytes.
        views: (b,) each, on the device of `pixels`.
    """
    out = torch.empty(len(starts), size, size, 3, device=pixels.device)
    tiles = triton.cdiv(size, _TILE)
    with torch.cuda.device(pixels.device) if pixels.is_cuda else torch.no_grad():
        _kernel[(len(starts), tiles, tiles)](pixels, starts, pitches, *views, out, size, _TILE)
    return out.permute(0, 3, 1, 2)


@triton.jit
def _axis(target, offset, start, length, grid):
    """Where output places lie in the source: centre, reach of the filter, first pixel under it."""
    step = length.to(tl.float32) / grid.to(tl.float32)
    reach = tl.maximum(step, 1.0)
    centre = (target + offset).to(tl.float32) * step + 0.5 * step + start.to(tl.float32)
    return centre, reach, tl.floor(centre - reach + 0.5).to(tl.int32)


@triton.jit
def _weight(place, centre, reach, start, length):
    """The triangle filter, zero outside the box."""
    weight = tl.maximum(1.0 - tl.abs(place.to(tl.float32) + 0.5 - centre) / reach, 0.0)
    return tl.where((place >= start) & (place < start + length), weight, 0.0)


@triton.jit
def _kernel(
    pixels, starts, pitches, tops, lefts, heights, widths, rows, columns, ys, xs, flips, out,
    SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    j = tl.program_id(2) * TILE + tl.arange(0, TILE)
    top, left = tl.load(tops + b).to(tl.int32), tl.load(lefts + b).to(tl.int32)
    height, width = tl.load(heights + b).to(tl.int32), tl.load(widths + b).to(tl.int32)
    seen = tl.where(tl.load(flips + b) != 0, SIZE - 1 - j, j)
    cy, reach_y, first_y = _axis(i, tl.load(ys + b), top, height, tl.load(rows + b))
    cx, reach_x, first_x = _axis(seen, tl.load(xs + b), left, width, tl.load(columns + b))
    source = pixels + tl.load(starts + b)
    pitch = tl.load(pitches + b)
    red = tl.zeros((TILE, TILE), tl.float32)
    green = tl.zeros((TILE, TILE), tl.float32)
    blue = tl.zeros((TILE, TILE), tl.float32)
    total_y = tl.zeros((TILE,), tl.float32)
    total_x = tl.zeros((TILE,), tl.float32)
    taps_x = (2.0 * reach_x).to(tl.int32) + 2
    for dx in range(taps_x):
        total_x += _weight(first_x + dx, cx, reach_x, left, width)
    for dy in range((2.0 * reach_y).to(tl.int32) + 2):
        y = first_y + dy
        weight_y = _weight(y, cy, reach_y, top, height)
        total_y += weight_y
        row = tl.minimum(tl.maximum(y, top), top + height - 1).to(tl.int64) * pitch
        for dx in range(taps_x):
            x = first_x + dx
            weight = weight_y[:, None] * _weight(x, cx, reach_x, left, width)[None, :]
            column = tl.minimum(tl.maximum(x, left), left + width - 1).to(tl.int64) * 3
            place = source + row[:, None] + column[None, :]
            red += weight * tl.load(place).to(tl.float32)
            green += weight * tl.load(place + 1).to(tl.float32)
            blue += weight * tl.load(place + 2).to(tl.float32)
    scale = 1.0 / (255.0 * total_y[:, None] * total_x[None, :])
    target = out + ((b.to(tl.int64) * SIZE + i[:, None]) * SIZE + j[None, :]) * 3
    inside = (i[:, None] < SIZE) & (j[None, :] < SIZE)
    tl.store(target, red * scale, mask=inside)
    tl.store(target + 1, green * scale, mask=inside)
    tl.store(target + 2, blue * scale, mask=inside)
