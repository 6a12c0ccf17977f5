"""Thumbnails of images as data URLs: the only place that makes them for a page or a figure."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image, ImageOps

from oodml.data import Dataset
from oodml.reporting.chart import GREY

SIDE = 96  # pixels, in a gallery
MAP_SIDE, MAP_FRAME = 44, 4  # on a map, and of the frame in the colour of its class


def thumbnails(wanted: dict[tuple[str, int], Dataset]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Dataset → image → data URL. An image that cannot be read is left out, with a note of how many."""
    found: dict[str, dict[str, str]] = {}
    missing = 0
    with ThreadPoolExecutor() as pool:  # decoding and encoding release Python's lock
        for (name, index), url in zip(wanted, pool.map(_thumbnail, wanted.items()), strict=True):
            missing += url is None
            if url is not None:
                found.setdefault(name, {})[str(index)] = url
    return found, [f"{missing} images of the galleries could not be read."] if missing else []


def _thumbnail(item: tuple[tuple[str, int], Dataset]) -> str | None:
    (_, index), dataset = item
    image = _small(dataset, index, SIDE)
    if image is None:
        return None
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return _data_url(image, quality=70)


def framed_thumbnail(dataset: Dataset, index: int, colour: str) -> str:
    """A square thumbnail inside a frame; grey where the image cannot be read."""
    image = _small(dataset, index, MAP_SIDE) or Image.new("RGB", (MAP_SIDE, MAP_SIDE), GREY)
    square = ImageOps.fit(image.convert("RGB"), (MAP_SIDE, MAP_SIDE), Image.Resampling.BILINEAR)
    return _data_url(ImageOps.expand(square, MAP_FRAME, colour), quality=60)


def _small(dataset: Dataset, index: int, side: int) -> Image.Image | None:
    try:
        return dataset.source.image(index, shrink_to=side)
    except (OSError, ValueError):
        return None


def _data_url(image: Image.Image, quality: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=2)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def pixels_of(url: str) -> np.ndarray:
    """The pixels (h, w, 3) of a data URL."""
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))
