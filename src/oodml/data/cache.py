"""Decode once: the images of a dataset, resized, as raw uint8 in one memory-mapped file.

`pixels.bin` holds one image after another, each row of RGB pixels padded to a multiple of 16 pixels (48 bytes, a
*chunk*), so that a batch of images of different sizes is one gather of whole chunks. `index.npy` holds, for every
image that could be read, where it begins (in chunks), its height and its width. `meta.json` is written last.
"""

from __future__ import annotations

import json
import warnings
import zlib
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oodml._errors import OodmlError
from oodml._files import atomic_folder, cache_root, exclusive, write_json
from oodml.data.dataset import Dataset
from oodml.data.decode import CHUNK_BYTES, CHUNK_PIXELS, decode_all, word_sum
from oodml.data.sources import digest

FORMAT = 2


@dataclass(frozen=True)
class PixelCache:
    """The images that could be read: their positions in the dataset, and where they are in `pixels`."""

    pixels: np.ndarray  # (chunks, CHUNK_BYTES) uint8
    rows: np.ndarray  # positions in the dataset, ascending
    starts: np.ndarray  # first chunk of each
    heights: np.ndarray
    widths: np.ndarray
    failed: list[dict[str, str]]  # name and reason of the others
    shrunk: bool = True  # whether an original may be larger than its form here

    def take(self, rows: np.ndarray, names: set[str]) -> PixelCache:
        """The images at positions `rows` of the dataset, whose names are `names`, numbered from 0."""
        found = np.searchsorted(self.rows, rows)
        found[found == len(self.rows)] = 0
        there = np.flatnonzero(self.rows[found] == rows)
        kept = found[there]
        failed = [f for f in self.failed if f["name"] in names]
        starts, heights, widths = self.starts[kept], self.heights[kept], self.widths[kept]
        return replace(self, rows=there, starts=starts, heights=heights, widths=widths, failed=failed)

    def side_within(self, limit: int, short_side: int, wanted: int) -> int:
        """The largest short side up to `wanted` at which these images take at most `limit` bytes.

        They are cached at `short_side` here. An image that reaches it is assumed to come from a larger original. The
        result depends on the images alone, not on the machine.
        """
        grows = np.minimum(self.heights, self.widths) >= short_side

        def size(side: int) -> int:  # the long side was rounded down: less than one pixel is missing
            heights, widths = (np.where(grows, (n + 1) * side // short_side, n) for n in (self.heights, self.widths))
            return int((heights * -(-widths // CHUNK_PIXELS)).sum()) * CHUNK_BYTES

        sides = range(short_side, wanted + 1)
        return sides[max(0, bisect_right(sides, limit, key=size) - 1)]


def open_or_build(ds: Dataset, short_side: int, workers: int | None = None, quiet: bool = False) -> PixelCache:
    """The cache of `ds`; images are decoded only if no intact cache of this source exists.

    A subset reads the cache of the dataset that it was taken from, if there is one.
    """
    if ds.parent is not None:
        whole, rows = ds.parent
        cached = read_cache(cache_folder(whole, short_side))
        if cached is not None:
            return cached.take(rows, {ds.path(i) for i in range(len(ds))})
    folder = cache_folder(ds, short_side)
    cached = read_cache(folder)  # without the lock: a finished cache is read from a read-only disk too
    if cached is not None:
        return cached
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        cached = read_cache(folder)  # another process may have built it meanwhile
        if cached is not None:
            return cached
        if folder.exists():
            warnings.warn(f"The image cache {folder} is damaged; it is built again.", stacklevel=3)
        _build(ds, folder, short_side, workers, quiet)
    cached = read_cache(folder)
    if cached is None:
        raise OodmlError(f"The image cache {folder} cannot be read back: check the disk, or remove that folder.")
    return cached


def cache_folder(ds: Dataset, short_side: int) -> Path:
    """The folder of the cache of `ds`, named by the fingerprint of its source."""
    return cache_root() / "images" / f"{ds.name}-{digest([ds.fingerprint, str(short_side), str(FORMAT)])}"


def read_cache(folder: Path, check_pixels: bool = False) -> PixelCache | None:
    """Open a cache; None where there is none or it is damaged.

    The index is always checked against its checksum and the pixels against their length; `check_pixels` also reads
    every pixel, which takes about a second per gigabyte.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        index = np.load(folder / "index.npy")
        size = (folder / "pixels.bin").stat().st_size
        if meta["format"] != FORMAT or meta["index_crc"] != _crc(index) or meta["bytes"] != size:
            return None
        # Copy-on-write, because torch needs writable memory; nothing writes to it.
        pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="c").reshape(-1, CHUNK_BYTES)
        if check_pixels and meta["pixels_sum"] != _sum_of_images(pixels, index):
            return None
        rows, starts, heights, widths = index
        return PixelCache(pixels, rows, starts, heights, widths, meta["failed"], meta.get("shrunk", True))
    except (OSError, ValueError, KeyError, EOFError, TypeError):
        return None


def _build(ds: Dataset, folder: Path, short_side: int, workers: int | None, quiet: bool) -> None:
    with atomic_folder(folder) as temporary:
        report = decode_all(ds, temporary / "pixels.bin", short_side, workers, quiet)
        if not len(report.rows):
            raise OodmlError(f"None of the {len(ds)} images of {ds.name!r} can be read; {_first(report.failed)}.")
        order = np.argsort(report.rows)
        table = np.array([report.rows, report.starts, report.heights, report.widths], dtype=np.int64)
        index = np.ascontiguousarray(table[:, order])
        np.save(temporary / "index.npy", index)
        meta = {
            "format": FORMAT,
            "dataset": ds.name,
            "place": ds.source.place,
            "fingerprint": ds.fingerprint,
            "short_side": short_side,
            "bytes": (temporary / "pixels.bin").stat().st_size,
            "index_crc": _crc(index),
            "pixels_sum": _combine([report.sums[i] for i in order]),
            "shrunk": any(report.shrunk),
            "failed": report.failed,
        }
        write_json(temporary / "meta.json", meta)


def _first(failed: list[dict[str, str]]) -> str:
    return f"the first: {failed[0]['name']} ({failed[0]['reason']})"


def _sum_of_images(pixels: np.ndarray, index: np.ndarray) -> int:
    _, starts, heights, widths = index
    counts = heights * -(-widths // CHUNK_PIXELS)
    return _combine([word_sum(pixels[s : s + n]) for s, n in zip(starts, counts, strict=True)])


def _combine(sums: list[int]) -> int:
    return _crc(np.array(sums, dtype=np.uint64))


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(array.data)
