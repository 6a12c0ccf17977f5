"""Images decoded, resized and written as raw pixels, by as many processes as there are cores.

Workers decode blocks of images, reserve a range of the file with a shared counter and write there themselves: pixels
are never sent between processes.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

from oodml._errors import OodmlError
from oodml._machine import cores
from oodml._progress import stage
from oodml.data.dataset import Dataset
from oodml.data.sources import FAULTS_OF_A_FILE, ArraySource, Source

CHUNK_PIXELS = 16
CHUNK_BYTES = 3 * CHUNK_PIXELS
_BLOCK = 32  # images that a worker decodes between two reports


class Report(NamedTuple):
    """Images that were decoded: position in the dataset, place in the file, size; and those that could not be."""

    rows: list[int]
    starts: list[int]
    heights: list[int]
    widths: list[int]
    sums: list[int]
    shrunk: list[bool]  # whether the original was larger
    failed: list[dict[str, str]]

    def extend(self, other: Report) -> None:
        for mine, others in zip(self, other, strict=True):
            cast(list, mine).extend(cast(list, others))


def decode_all(ds: Dataset, path: Path, short_side: int, workers: int | None, quiet: bool) -> Report:
    """Write all images of `ds` to `path`; the report lists them in the order of the dataset's blocks."""
    blocks = [range(i, min(i + _BLOCK, len(ds))) for i in range(0, len(ds), _BLOCK)]
    if workers is None:
        workers = 1 if isinstance(ds.source, ArraySource) else cores()
    total = Report([], [], [], [], [], [], [])
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
            "A process that decodes images was killed, probably for lack of memory. Try again with fewer workers."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_writer: _Writer | None = None  # of a worker process


def _start(source: Source, path: Path, short_side: int, counter: Any) -> None:
    global _writer
    _writer = _Writer(source, path, short_side, counter)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker when its parent has ended: it would wait for work forever and keep the parent's lock."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _decode_block(block: range) -> Report:
    assert _writer is not None
    return _writer.decode(block)


class _Writer:
    """Decodes images and writes them at the next free place, which a counter shared by all workers holds."""

    def __init__(self, source: Source, path: Path, short_side: int, counter: Any) -> None:
        self.source, self.short_side, self.counter = source, short_side, counter
        self.handle = os.open(path, os.O_WRONLY)

    def close(self) -> None:
        os.close(self.handle)

    def decode(self, block: range) -> Report:
        report = Report([], [], [], [], [], [], [])
        for i in block:
            try:
                original = self.source.image(i, self.short_side)
                image = shrink(original, self.short_side)
            except Exception as error:  # Pillow raises many kinds for a broken file
                if _is_temporary(error):
                    raise _temporary(self.source.name(i), error) from error
                report.failed.append({"name": self.source.name(i), "reason": str(error) or type(error).__name__})
                continue
            pitch = -(-image.width // CHUNK_PIXELS) * CHUNK_BYTES
            content = image.tobytes("raw", "RGB", pitch, 1)  # pads every row to the pitch
            report.rows.append(i)
            report.starts.append(self._write(content))
            report.heights.append(image.height)
            report.widths.append(image.width)
            report.sums.append(word_sum(np.frombuffer(content, dtype=np.uint8)))
            report.shrunk.append(image.size != original.size)
        return report

    def _write(self, content: bytes) -> int:
        """Write one image while it is in the processor's cache; returns its first chunk."""
        with self.counter.get_lock():
            first = self.counter.value
            self.counter.value += len(content) // CHUNK_BYTES
        rest, offset = memoryview(content), first * CHUNK_BYTES
        while rest:  # an almost full disk takes a part, then fails
            written = os.pwrite(self.handle, rest, offset)
            rest, offset = rest[written:], offset + written
        return first


def _is_temporary(error: Exception) -> bool:
    """Whether the error is not the file's own, so that it must not be kept in the cache. Pillow's have no `errno`."""
    if isinstance(error, OSError):
        return error.errno is not None and error.errno not in FAULTS_OF_A_FILE
    return isinstance(error, MemoryError)


def _temporary(name: str, error: Exception) -> OodmlError:
    reason = error.strerror if isinstance(error, OSError) else "out of memory"
    return OodmlError(
        f"The image {name} could not be read ({reason}), and the file itself may be intact: check the disk, its "
        "permissions, memory and open files, then start again. Nothing half-written was left behind."
    )


def shrink(image: Image.Image, short_side: int) -> Image.Image:
    """Resize so that the short side is `short_side`, as torchvision's Resize; a smaller image is left as it is.

    Views enlarge small images themselves, so the cache need not hold more pixels than the original.
    """
    width, height = image.size
    short = min(width, height)
    if short <= short_side:
        return image
    long = int(short_side * max(width, height) / short)
    return image.resize((short_side, long) if width <= height else (long, short_side), Image.Resampling.BILINEAR)


def word_sum(pixels: np.ndarray) -> int:
    """The sum of the 8-byte words: detects any damaged byte at a fifth of the cost of a CRC."""
    return int(pixels.reshape(-1).view(np.uint64).sum(dtype=np.uint64))
