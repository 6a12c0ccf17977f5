"""Views: which part of an image is shown, at what size, and flipped or not; for a whole batch at once.

A view is a box of the source, a grid it is resized to (bilinear, antialiased where that shrinks it), a window of the
grid, and a flip. Random resized crops, the evaluation crop and the Sharing-Matters crop are all views, so one
function applies them all. Drawing parameters and applying them are separate, and both are pure.

`view_padded` is for a GPU: resizing rows and columns are two banded matrices, so a batch of views is two batched
matrix products, whatever the boxes. `view_each` is for a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Views(NamedTuple):
    """One view per image; every field has shape (b,), int64, `flip` is bool."""

    top: Tensor  # the box, in source pixels
    left: Tensor
    height: Tensor
    width: Tensor
    rows: Tensor  # the grid the box is resized to
    columns: Tensor
    y: Tensor  # first row and column of the window in the grid
    x: Tensor
    flip: Tensor

    def to(self, device: torch.device | str) -> Views:
        return Views(*(field.to(device, non_blocking=True) for field in self))


def random_resized_crop(
    heights: Tensor,
    widths: Tensor,
    size: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    generator: torch.Generator | None = None,
) -> Views:
    """Draw random resized crops as torchvision does: ten tries at a box of random area and ratio, else the centre.

    Everything stays on the device of `heights`; only the random numbers are drawn on the device of the generator.
    """
    draws = _uniform((5, 10, len(heights)), heights.device, generator)
    if draws.is_cpu:  # many operations on few numbers: NumPy takes a third of torch's time
        numbers = draws.numpy()
        fields = np.zeros((8, len(heights)), dtype=np.int64)
        fields[:4] = _boxes(np, numbers, np.stack([heights.numpy(), widths.numpy()]), scale, ratio)
        fields[4:6] = size
        return Views._make(map(torch.from_numpy, [*fields, numbers[4, 0] < flip]))
    boxes = _boxes(torch, draws, torch.stack([heights, widths]), scale, ratio).long()
    whole, zero = torch.full_like(heights, size), torch.zeros_like(heights)
    return Views._make([*boxes, whole, whole, zero, zero, draws[4, 0] < flip])


def _boxes(lib: Any, draws: Any, sides: Any, scale: tuple[float, float], ratio: tuple[float, float]) -> Any:
    """Top, left, height and width of the boxes (4, b) for random numbers (5, 10, b) and sides (2, b).

    `lib` is torch or NumPy (functions that both have); both axes at once, because there are many small operations.
    """
    area = sides.prod(0) * (scale[0] + draws[0] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = lib.exp(low + draws[1] * (high - low))
    tries = lib.round(lib.sqrt(lib.stack([area / aspect, area * aspect])))  # (2, 10, b)
    fits = ((tries > 0) & (tries <= sides[:, None])).all(0)
    first = fits & ((fits * 1).cumsum(0) == 1)  # of the tries; none where none fits
    box = (tries * first).sum(1)
    corner = (draws[2:4] * first).sum(1) * (sides - box + 1)
    # No try fits (a very long image): the largest centred box whose ratio is allowed.
    centred = lib.minimum(sides, lib.round(lib.stack([sides[1] / ratio[0], sides[0] * ratio[1]])))
    fallback = lib.concatenate([(sides - centred) / 2, centred])
    return lib.floor(lib.where(box[0] > 0, lib.concatenate([corner, box]), fallback))


def centre_crop(heights: Tensor, widths: Tensor, short_side: int, size: int) -> Views:
    """Resize the short side to `short_side`, cut the centre `size` × `size`: the evaluation view."""
    zero = torch.zeros_like(heights)
    rows = torch.where(heights <= widths, short_side, torch.floor(short_side * heights.double() / widths).long())
    columns = torch.where(widths <= heights, short_side, torch.floor(short_side * widths.double() / heights).long())
    y, x = (torch.round((side - size) / 2).long() for side in (rows, columns))
    return Views(zero, zero, heights, widths, rows, columns, y, x, zero.bool())


def squeezed_random_crop(
    heights: Tensor,
    widths: Tensor,
    side: int,
    size: int,
    flip: float = 0.5,
    generator: torch.Generator | None = None,
) -> Views:
    """Resize to `side` × `side` whatever the ratio, cut a random `size` × `size` window (Sharing Matters: 256, 224)."""
    draws = _uniform((3, len(heights)), heights.device, generator)
    zero = torch.zeros_like(heights)
    y, x = ((draws[i] * (side - size + 1)).long() for i in range(2))
    grid = torch.full_like(heights, side)
    return Views(zero, zero, heights, widths, grid, grid, y, x, draws[2] < flip)


def _uniform(shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    source = device if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, device=source, generator=generator).to(device, non_blocking=True)


def view_padded(images: Tensor, views: Views, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """Apply views to images (b, H, W, 3) uint8, padded at the bottom and right: (b, 3, size, size) in [0, 1].

        out[c] = Y · image[c] · Xᵀ,    Y (size × H), X (size × W)

    Row i of Y holds the triangle filter around the place in the box that row i of the window shows, its width the
    step between rows (at least one source pixel), zero outside the box, and sums to one: torch's antialiased
    bilinear interpolation. `dtype` is that of the products: float16 on CUDA (uint8 is exact in it, errors stay below
    a third of a grey level), float32 elsewhere.
    """
    if dtype is None:
        dtype = torch.float16 if images.is_cuda else torch.float32
    b, height, width, _ = images.shape
    down = _bands(views.top, views.height, views.rows, views.y, size, height, torch.zeros_like(views.flip), dtype)
    across = _bands(views.left, views.width, views.columns, views.x, size, width, views.flip, dtype)
    planes = images.permute(0, 1, 3, 2).to(dtype, memory_format=torch.contiguous_format)  # (b, H, 3, W)
    half = torch.bmm(planes.view(b, height * 3, width), across.transpose(1, 2))  # (b, H·3, size)
    out = torch.bmm(down, half.view(b, height, 3 * size)).view(b, size, 3, size)
    views_made = torch.empty(b, 3, size, size, dtype=torch.float32, device=images.device)
    return torch.mul(out.permute(0, 2, 1, 3), 1 / 255, out=views_made)


def _bands(
    start: Tensor, length: Tensor, grid: Tensor, offset: Tensor, size: int, n: int, flip: Tensor, dtype: torch.dtype
) -> Tensor:
    """The resizing matrices of one axis: (b, size, n)."""
    device = start.device
    step = length.float() / grid
    reach = step.clamp(min=1.0)[:, None]
    target = torch.arange(size, device=device).expand(len(start), size)
    target = torch.where(flip[:, None], size - 1 - target, target)
    centre = ((target + offset[:, None] + 0.5) * step[:, None] + start[:, None]) / reach  # (b, size)
    pixel = torch.arange(n, device=device)
    outside = (pixel < start[:, None]) | (pixel >= (start + length)[:, None])
    place = ((pixel + 0.5) / reach).masked_fill_(outside, 1e9)  # (b, n): far from every centre, so of weight 0
    # These are the largest arrays, so every pass over them costs time.
    weights = torch.rsub((place[:, None, :] - centre[:, :, None]).abs_(), 1.0).relu_()
    return torch.div(weights, weights.sum(dim=2, keepdim=True), out=torch.empty_like(weights, dtype=dtype))


def enlarges(views: Views) -> bool:
    """Whether no view shrinks its box: then antialiased interpolation is plain bilinear interpolation. For a CPU."""
    height, width, rows, columns = (field.numpy() for field in views[2:6])
    return bool((height <= rows).all() and (width <= columns).all())


def view_enlarged(images: Tensor, views: Views, size: int) -> Tensor:
    """Apply views that only enlarge to small images (b, H, W, 3) uint8: (b, 3, size, size) in [0, 1], channels last.

    Bilinear interpolation at the places that the window shows, clamped to the box, for the whole batch in one call.
    """
    # The fields in pairs, of the rows and of the columns: (2, b, 1) each.
    start, length, grid, offset = np.stack([field.numpy() for field in views[:8]]).reshape(4, 2, -1, 1)
    target = np.arange(0.5, size) + offset
    flip = views.flip.numpy()
    if flip.any():
        target[1, flip] = target[1, flip, ::-1]
    place = np.minimum(np.maximum(target * (length / grid) + (start - 0.5), start), start + (length - 1))
    # -1 is the middle of the first pixel, 1 that of the last.
    scale = np.array([[[2 / max(1, side - 1)]] for side in images.shape[1:3]])
    down, across = torch.from_numpy((place * scale - 1).astype(np.float32))
    # Every pass over arrays of this size costs time: one for the grid (pairs, made as complex numbers), and one that
    # scales the pixels and makes them channels-last.
    pairs = torch.view_as_real(torch.complex(across[:, None, :], down[:, :, None]))
    planes = images.permute(0, 3, 1, 2).float()
    seen = F.grid_sample(planes, pairs, align_corners=True, padding_mode="border")
    return torch.mul(seen, 1 / 255, out=torch.empty_like(seen, memory_format=torch.channels_last))


def view_each(images: Sequence[np.ndarray], views: Views, size: int) -> Tensor:
    """Apply views to images (H, W, 3) uint8 of any sizes, one by one: (b, 3, size, size) in [0, 1].

    On a CPU torch's uint8 kernel on one box is ten times quicker than the banded products over the padded batch (it
    skips the zeros and works in fixed point), so a loop over the batch is the fast form. Cutting, flipping and
    converting use NumPy: torch would split an image among threads, and it is too small for that. Results are those of
    torchvision's v2 transforms on uint8: rounded to whole grey levels.
    """
    out = np.empty((len(images), 3, size, size), dtype=np.float32)
    numbers = torch.stack([*views[:8], views.flip.long()], dim=1).tolist()
    for target, image, (top, left, height, width, rows, columns, y, x, flip) in zip(out, images, numbers, strict=True):
        box = image[top : top + height, left : left + width]
        if (height, width) != (rows, columns):
            # Channels last is the kernel's quickest layout, and that of the cache.
            planes = torch.from_numpy(np.ascontiguousarray(box)).permute(2, 0, 1)[None]
            resized = F.interpolate(planes, (rows, columns), mode="bilinear", antialias=True)
            box = resized[0].permute(1, 2, 0).numpy()
        window = box[y : y + size, x : x + size]
        np.copyto(target, (window[:, ::-1] if flip else window).transpose(2, 0, 1))
        target *= np.float32(1 / 255)  # while it is in the processor's cache
    return torch.from_numpy(out)
