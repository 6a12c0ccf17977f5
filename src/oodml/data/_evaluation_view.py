"""The evaluation view: how a picture is seen where nothing is trained, be it of a cache or of a caller.

The short side is resized, the centre cut. A picture of a caller's is first made what the cache would hold of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from oodml.data._dataset import Transforms
from oodml.data._decode import shrink
from oodml.data._sources import upright_rgb
from oodml.data.augment import Views, centre_crop, enlarges, view_each, view_enlarged

SMALL = 64  # pixels a side up to which pictures are cheaper to enlarge a batch at once than one by one


def centred(transforms: Transforms, size: int | None = None) -> Callable[[Tensor, Tensor], Views]:
    """Heights and widths to evaluation views; another `size` than the transforms' scales the short side along."""
    size = transforms.size if size is None else size
    short_side = round(transforms.short_side * size / transforms.size)
    return lambda heights, widths: centre_crop(heights, widths, short_side, size)


def view_one(picture: str | Path | Image.Image, transforms: Transforms, size: int | None = None) -> Tensor:
    """What `Images.eval_view` shows on a CPU of a picture that is in no cache: (3, size, size) float32 in [0, 1].

    A file is decoded as for the cache; an image in memory is taken as it is, upright and RGB. `Images` rounds
    a SMALL picture to whole grey levels where its set has larger ones; that is all that may differ.
    """
    size = transforms.size if size is None else size
    pixels = np.array(_cached_form(picture, transforms.short_side))
    views = centred(transforms, size)(*(torch.tensor([side]) for side in pixels.shape[:2]))
    if max(pixels.shape[:2]) <= SMALL and enlarges(views):
        return view_enlarged(torch.from_numpy(pixels[None]), views, size)[0].contiguous()
    return view_each([pixels], views, size)[0]


def _cached_form(picture: str | Path | Image.Image, short_side: int) -> Image.Image:
    if isinstance(picture, Image.Image):
        return shrink(upright_rgb(picture.copy()), short_side)
    with Image.open(picture) as opened:
        return shrink(upright_rgb(opened, short_side), short_side)
