"""Where the pictures of a data set are: files, members of a tar, or one array.

A source is small, picklable and safe to use from several processes at once: a tar is read with `pread` at known
offsets, so no two readers share a position in the file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageOps

# What the system says of a broken file, a link to nothing or to itself, a folder in its place, or a header that points
# out of it. Anything else (a failing disk, a lost server, too many open files, missing rights) may pass.
FAULTS_OF_A_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EOVERFLOW)


class Source(Protocol):
    """Pictures by position. `place`: the folder or file they are in, "" where they are made."""

    @property
    def place(self) -> str: ...

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """A display name: the path of picture `i` below the root of its set."""
        ...

    def image(self, i: int, shrink_to: int | None = None) -> Image.Image:
        """Picture `i`, upright, RGB.

        `shrink_to`: a quicker decoding at a smaller size is welcome, of at least twice this short side.
        """
        ...

    def fingerprint(self) -> str:
        """A digest that changes when a picture is added, removed or rewritten."""
        ...

    def subset(self, indices: np.ndarray) -> Source: ...


class FileSource:
    """Pictures in files below `root`."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = Path(root).absolute()  # a later change of directory must not matter
        self.names = list(names)

    @property
    def place(self) -> str:
        return str(self.root)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def image(self, i: int, shrink_to: int | None = None) -> Image.Image:
        with Image.open(self.root / self.names[i]) as picture:
            return upright_rgb(picture, shrink_to)

    def fingerprint(self) -> str:
        return digest(map(self._state, self.names))

    def subset(self, indices: np.ndarray) -> FileSource:
        return FileSource(self.root, [self.names[i] for i in indices])

    def _state(self, name: str) -> str:
        try:
            found = os.stat(self.root / name)  # noqa: PTH116 - 12,000 of these; os.stat is the quick one
        except OSError as error:  # a link to nothing, say: reading the picture tells why, and leaves it out
            if error.errno not in FAULTS_OF_A_FILE:
                raise
            return f"{name}\0"
        return f"{name}\0{found.st_size}\0{found.st_mtime_ns}"


class TarSource:
    """Pictures inside an uncompressed tar, read in any order at offsets that were listed once."""

    def __init__(self, path: Path, names: Sequence[str], offsets: np.ndarray, sizes: np.ndarray) -> None:
        self.path = Path(path).absolute()
        self.names = list(names)
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self.sizes = np.asarray(sizes, dtype=np.int64)

    @property
    def place(self) -> str:
        return str(self.path)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def image(self, i: int, shrink_to: int | None = None) -> Image.Image:
        content = os.pread(self._handle, int(self.sizes[i]), int(self.offsets[i]))
        with Image.open(io.BytesIO(content)) as picture:
            return upright_rgb(picture, shrink_to)

    def fingerprint(self) -> str:
        archive = self.path.stat()
        lines = (f"{n}\0{o}\0{s}" for n, o, s in zip(self.names, self.offsets, self.sizes, strict=True))
        return digest([f"{archive.st_size}\0{archive.st_mtime_ns}", *lines])

    def subset(self, indices: np.ndarray) -> TarSource:
        return TarSource(self.path, [self.names[i] for i in indices], self.offsets[indices], self.sizes[indices])

    @cached_property
    def _handle(self) -> int:
        return self._file.fileno()

    @cached_property
    def _file(self) -> io.FileIO:
        return io.FileIO(self.path, "r")  # closed by its finaliser, with the source

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key not in ("_handle", "_file")}


class ArraySource:
    """Grey pictures (N, H, W) or colour pictures (N, H, W, 3), uint8."""

    place = ""

    def __init__(self, pixels: np.ndarray, names: Sequence[str]) -> None:
        self.pixels = pixels
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def image(self, i: int, shrink_to: int | None = None) -> Image.Image:
        return Image.fromarray(np.asarray(self.pixels[i])).convert("RGB")

    def fingerprint(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.pixels).data).hexdigest()[:16]

    def subset(self, indices: np.ndarray) -> ArraySource:
        return ArraySource(self.pixels[indices], [self.names[i] for i in indices])


def upright_rgb(picture: Image.Image, shrink_to: int | None = None) -> Image.Image:
    """Decode: honour the EXIF orientation, convert to RGB (transparent parts become white).

    With `shrink_to` a JPEG is decoded at a half, quarter or eighth of its size where that still leaves twice the
    wanted short side, which is several times quicker for camera pictures and invisible after the antialiased resize.
    """
    if shrink_to is not None and picture.format == "JPEG":
        picture.draft("RGB", (2 * shrink_to, 2 * shrink_to))
    ImageOps.exif_transpose(picture, in_place=True)
    if picture.mode == "RGB":
        picture.load()
        return picture
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    if picture.mode.startswith("I;16"):  # Pillow would clip 16 bits to 255 instead of scaling them
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")


def digest(lines: Iterable[str]) -> str:
    """A short digest of text lines."""
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape"))
        total.update(b"\n")
    return total.hexdigest()[:16]
