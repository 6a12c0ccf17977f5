"""Decode once: the pictures of a data set, resized, as raw uint8 in one memory-mapped file.

`pixels.bin` holds one picture after another, rows of RGB pixels padded to a multiple of 16 pixels (48 bytes, a
*chunk*), so that a batch of pictures of different sizes is one gather of whole chunks. `index.npy` says for every
picture that could be read where it begins (in chunks), its height and its width. `meta.json` is written last.
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
from oodml.data._dataset import Dataset
from oodml.data._decode import CHUNK_BYTES, CHUNK_PIXELS, decode_all, word_sum
from oodml.data._sources import digest

FORMAT = 2


@dataclass(frozen=True)
class PixelCache:
    """The pictures that could be read: which ones, and where they are in `pixels` (chunks, CHUNK_BYTES)."""

    pixels: np.ndarray
    rows: np.ndarray  # positions in the data set, ascending
    starts: np.ndarray  # first chunk of each
    heights: np.ndarray
    widths: np.ndarray
    failed: list[dict[str, str]]  # name and reason of the others
    shrunk: bool = True  # whether an original may be larger than its form here

    def take(self, rows: np.ndarray, names: set[str]) -> PixelCache:
        """The pictures at positions `rows` of the data set, renumbered; `names` are theirs."""
        place = np.searchsorted(self.rows, rows)
        place[place == len(self.rows)] = 0
        there = np.flatnonzero(self.rows[place] == rows)
        kept = place[there]
        failed = [f for f in self.failed if f["name"] in names]
        starts, heights, widths = self.starts[kept], self.heights[kept], self.widths[kept]
        return replace(self, rows=there, starts=starts, heights=heights, widths=widths, failed=failed)

    def side_within(self, limit: int, short_side: int, wanted: int) -> int:
        """The largest short side up to `wanted` at which these images surely take at most `limit` bytes.

        They are cached at `short_side` here. Those that reach it may come from originals of any size and are taken to
        grow; the result depends on the images alone, not on the machine.
        """
        grows = np.minimum(self.heights, self.widths) >= short_side

        def size(side: int) -> int:  # the long side was rounded down, so the original's is below one pixel more
            heights, widths = (np.where(grows, (n + 1) * side // short_side, n) for n in (self.heights, self.widths))
            return int((heights * -(-widths // CHUNK_PIXELS)).sum()) * CHUNK_BYTES

        sides = range(short_side, wanted + 1)
        return sides[max(0, bisect_right(sides, limit, key=size) - 1)]


def open_or_build(ds: Dataset, short_side: int, workers: int | None = None, quiet: bool = False) -> PixelCache:
    """The cache of `ds`; pictures are decoded only if no intact cache of this source exists.

    A subset reads the cache of the set it was taken from where that exists.
    """
    if ds.parent is not None:
        whole, rows = ds.parent
        cached = read_cache(cache_folder(whole, short_side))
        if cached is not None:
            return cached.take(rows, {ds.path(i) for i in range(len(ds))})
    folder = cache_folder(ds, short_side)
    cached = read_cache(folder)  # without the lock: a finished cache also serves from a read-only disk
    if cached is not None:
        return cached
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        cached = read_cache(folder)  # another process may have built it meanwhile
        if cached is not None:
            return cached
        if folder.exists():
            warnings.warn(f"The image cache {folder} is damaged and is built again.", stacklevel=3)
        _build(ds, folder, short_side, workers, quiet)
    cached = read_cache(folder)
    if cached is None:
        raise OodmlError(f"The image cache {folder} cannot be read back; check the disk, or remove that folder.")
    return cached


def cache_folder(ds: Dataset, short_side: int) -> Path:
    """Where the cache of `ds` is, or would be: its name follows the source's fingerprint."""
    return cache_root() / "images" / f"{ds.name}-{digest([ds.fingerprint, str(short_side), str(FORMAT)])}"


def read_cache(folder: Path, check_pixels: bool = False) -> PixelCache | None:
    """Open a cache; None where there is none or it is damaged.

    The index is always checked against its checksum and the pixels against their length; `check_pixels` also reads
    every pixel, which takes a second for each gigabyte or so.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        index = np.load(folder / "index.npy")
        size = (folder / "pixels.bin").stat().st_size
        if meta["format"] != FORMAT or meta["index_crc"] != _crc(index) or meta["bytes"] != size:
            return None
        # Copy-on-write: torch wants memory it could write to; nobody does.
        pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="c").reshape(-1, CHUNK_BYTES)
        if check_pixels and meta["pixels_sum"] != _sum_of_pictures(pixels, index):
            return None
        rows, starts, heights, widths = index
        return PixelCache(pixels, rows, starts, heights, widths, meta["failed"], meta.get("shrunk", True))
    except (OSError, ValueError, KeyError, EOFError, TypeError):
        return None


def _build(ds: Dataset, folder: Path, short_side: int, workers: int | None, quiet: bool) -> None:
    with atomic_folder(folder) as temporary:
        report = decode_all(ds, temporary / "pixels.bin", short_side, workers, quiet)
        if not len(report.rows):
            raise OodmlError(f"None of the {len(ds)} pictures of {ds.name!r} can be read; {_first(report.failed)}.")
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


def _sum_of_pictures(pixels: np.ndarray, index: np.ndarray) -> int:
    _, starts, heights, widths = index
    counts = heights * -(-widths // CHUNK_PIXELS)
    return _combine([word_sum(pixels[s : s + n]) for s, n in zip(starts, counts, strict=True)])


def _combine(sums: list[int]) -> int:
    return _crc(np.array(sums, dtype=np.uint64))


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(array.data)
