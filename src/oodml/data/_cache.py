"""Decode once: the pictures of a data set, resized, as raw uint8 in one memory-mapped file.

`pixels.bin` holds one picture after another, rows of RGB pixels padded to a multiple of 16 pixels (48 bytes, a
*chunk*), so that a batch of pictures of different sizes is one gather of whole chunks. `index.npy` says for every
picture that could be read where it begins (in chunks), its height and its width. `meta.json` is written last.

Workers decode blocks of pictures, reserve room in the file with a shared counter and write there themselves: pixels
never travel between processes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

from oodml._errors import OodmlError
from oodml._files import atomic_folder, cache_root, exclusive, write_json
from oodml._progress import stage
from oodml.data._dataset import Dataset
from oodml.data._sources import ArraySource, Source, digest

FORMAT = 2
CHUNK_PIXELS = 16
CHUNK_BYTES = 3 * CHUNK_PIXELS
_BLOCK = 32  # pictures a worker decodes between two reports


@dataclass(frozen=True)
class PixelCache:
    """The pictures that could be read: which ones, and where they are in `pixels` (chunks, CHUNK_BYTES)."""

    pixels: np.ndarray
    rows: np.ndarray  # positions in the data set, ascending
    starts: np.ndarray  # first chunk of each
    heights: np.ndarray
    widths: np.ndarray
    failed: list[dict[str, str]]  # name and reason of the others

    def take(self, rows: np.ndarray, names: set[str]) -> PixelCache:
        """The pictures at positions `rows` of the data set, renumbered; `names` are theirs."""
        place = np.searchsorted(self.rows, rows)
        place[place == len(self.rows)] = 0
        there = np.flatnonzero(self.rows[place] == rows)
        kept = place[there]
        failed = [f for f in self.failed if f["name"] in names]
        return PixelCache(self.pixels, there, self.starts[kept], self.heights[kept], self.widths[kept], failed)


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
        return PixelCache(pixels, rows, starts, heights, widths, meta["failed"])
    except (OSError, ValueError, KeyError, EOFError, TypeError):
        return None


def _build(ds: Dataset, folder: Path, short_side: int, workers: int | None, quiet: bool) -> None:
    with atomic_folder(folder) as temporary:
        report = _decode_all(ds, temporary / "pixels.bin", short_side, workers, quiet)
        if not len(report.rows):
            raise OodmlError(f"None of the {len(ds)} pictures of {ds.name!r} can be read; {_first(report.failed)}.")
        order = np.argsort(report.rows)
        table = np.array([report.rows, report.starts, report.heights, report.widths], dtype=np.int64)
        index = np.ascontiguousarray(table[:, order])
        np.save(temporary / "index.npy", index)
        meta = {
            "format": FORMAT,
            "dataset": ds.name,
            "fingerprint": ds.fingerprint,
            "short_side": short_side,
            "bytes": (temporary / "pixels.bin").stat().st_size,
            "index_crc": _crc(index),
            "pixels_sum": _combine([report.sums[i] for i in order]),
            "failed": report.failed,
        }
        write_json(temporary / "meta.json", meta)


def _first(failed: list[dict[str, str]]) -> str:
    return f"the first: {failed[0]['name']} ({failed[0]['reason']})"


class _Report(NamedTuple):
    """What became of some pictures."""

    rows: list[int]
    starts: list[int]
    heights: list[int]
    widths: list[int]
    sums: list[int]
    failed: list[dict[str, str]]

    def extend(self, other: _Report) -> None:
        for mine, others in zip(self, other, strict=True):
            cast(list, mine).extend(cast(list, others))


def _decode_all(ds: Dataset, path: Path, short_side: int, workers: int | None, quiet: bool) -> _Report:
    blocks = [range(i, min(i + _BLOCK, len(ds))) for i in range(0, len(ds), _BLOCK)]
    if workers is None:
        workers = 1 if isinstance(ds.source, ArraySource) else _cores()
    total = _Report([], [], [], [], [], [])
    path.touch()
    with (
        _mapper(min(workers, len(blocks)), (ds.source, path, short_side)) as results,
        stage(f"Decoding {ds.name}", len(ds), quiet) as advance,
    ):
        for block, report in zip(blocks, results(blocks), strict=True):
            total.extend(report)
            advance(len(block))
    total.failed.sort(key=lambda f: f["name"])
    return total


def _cores() -> int:
    """The cores this process may use, which a container or `taskset` may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _mapper(workers: int, job: tuple[Source, Path, int]) -> Iterator[Any]:
    """A function that maps blocks to reports, in this process or in several."""
    # Forked, not spawned: workers inherit the source, and a user's script needs no `if __name__ == "__main__"`.
    # They only decode and write; they never touch torch, whose threads would not survive the fork.
    fork = multiprocessing.get_context("fork")
    counter = fork.Value("q", 0)
    if workers <= 1:
        with closing(_Writer(*job, counter)) as writer:
            yield lambda blocks: map(writer.decode, blocks)
        return
    pool = ProcessPoolExecutor(workers, mp_context=fork, initializer=_start, initargs=(*job, counter))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            yield lambda blocks: pool.map(_decode_block, blocks)
    except BrokenProcessPool as error:
        raise OodmlError(
            "A process that decodes pictures was killed, most likely for memory. Try again with fewer workers."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_writer: _Writer | None = None  # of a worker process


def _start(source: Source, path: Path, short_side: int, counter: Any) -> None:
    global _writer
    _writer = _Writer(source, path, short_side, counter)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker when its parent is gone: it waits for work for ever, and holds the parent's lock meanwhile."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _decode_block(block: range) -> _Report:
    assert _writer is not None
    return _writer.decode(block)


class _Writer:
    """Decodes pictures and writes them where the shared counter says there is room."""

    def __init__(self, source: Source, path: Path, short_side: int, counter: Any) -> None:
        self.source, self.short_side, self.counter = source, short_side, counter
        self.handle = os.open(path, os.O_WRONLY)

    def close(self) -> None:
        os.close(self.handle)

    def decode(self, block: range) -> _Report:
        report = _Report([], [], [], [], [], [])
        for i in block:
            try:
                picture = shrink(self.source.image(i, self.short_side), self.short_side)
            except Exception as error:  # Pillow raises many kinds for a broken file; any of them is the file's fault
                report.failed.append({"name": self.source.name(i), "reason": str(error) or type(error).__name__})
                continue
            pitch = -(-picture.width // CHUNK_PIXELS) * CHUNK_BYTES
            content = picture.tobytes("raw", "RGB", pitch, 1)  # pads every row to the pitch
            report.rows.append(i)
            report.starts.append(self._write(content))
            report.heights.append(picture.height)
            report.widths.append(picture.width)
            report.sums.append(_sum(np.frombuffer(content, dtype=np.uint8)))
        return report

    def _write(self, content: bytes) -> int:
        """Write one picture, while it is still in the processor's cache; returns its first chunk."""
        with self.counter.get_lock():
            first = self.counter.value
            self.counter.value += len(content) // CHUNK_BYTES
        rest, offset = memoryview(content), first * CHUNK_BYTES
        while rest:  # a disk that is almost full takes a part, then says why
            written = os.pwrite(self.handle, rest, offset)
            rest, offset = rest[written:], offset + written
        return first


def shrink(picture: Image.Image, short_side: int) -> Image.Image:
    """Resize so that the short side is `short_side`, as torchvision's Resize; a smaller picture is left alone.

    Enlarging would cost room on the disk and tell nothing new; a view that needs more pixels makes them itself.
    """
    width, height = picture.size
    short = min(width, height)
    if short <= short_side:
        return picture
    long = int(short_side * max(width, height) / short)
    return picture.resize((short_side, long) if width <= height else (long, short_side), Image.Resampling.BILINEAR)


def _sum_of_pictures(pixels: np.ndarray, index: np.ndarray) -> int:
    _, starts, heights, widths = index
    counts = heights * -(-widths // CHUNK_PIXELS)
    return _combine([_sum(pixels[s : s + n]) for s, n in zip(starts, counts, strict=True)])


def _sum(pixels: np.ndarray) -> int:
    """The sum of the 8-byte words: sees any damaged byte and costs a fifth of a CRC, which decoding would feel."""
    return int(pixels.reshape(-1).view(np.uint64).sum(dtype=np.uint64))


def _combine(sums: list[int]) -> int:
    return _crc(np.array(sums, dtype=np.uint64))


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(array.data)
