"""Where the images of a dataset are: files below a folder, members of a tar, or one array; and finding them there.

A source is small, picklable and safe to use from several processes at once: a tar is read with `pread` at known
offsets, so no two readers share a position in the file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
from PIL import Image, ImageOps

from oodml._errors import OodmlError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
# The system's errors for a broken file, a link to nothing or to itself, a folder instead of a file, or a header that
# points beyond the file. Other errors (a failing disk, too many open files, missing rights) may be temporary.
FAULTS_OF_A_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EOVERFLOW)


class Source(Protocol):
    """Images by position. `place`: the folder or file they are in, "" for images in memory."""

    @property
    def place(self) -> str: ...

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """A display name: the path of image `i` below the root of its dataset."""
        ...

    def image(self, i: int, shrink_to: int | None = None) -> Image.Image:
        """Image `i`, upright, RGB. With `shrink_to` it may be decoded at a smaller size, quicker, as long as its short
        side is at least twice that."""
        ...

    def fingerprint(self) -> str:
        """A digest that changes when an image is added, removed or rewritten."""
        ...

    def subset(self, indices: np.ndarray) -> Source: ...


class FileSource:
    """Images in files below `root`."""

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
        with Image.open(self.root / self.names[i]) as image:
            return upright_rgb(image, shrink_to)

    def fingerprint(self) -> str:
        return digest(map(self._state, self.names))

    def subset(self, indices: np.ndarray) -> FileSource:
        return FileSource(self.root, [self.names[i] for i in indices])

    def _state(self, name: str) -> str:
        try:
            found = os.stat(self.root / name)  # noqa: PTH116 - 12,000 of these; os.stat is quicker
        except OSError as error:  # e.g. a link to nothing: the image is left out when it is read
            if error.errno not in FAULTS_OF_A_FILE:
                raise
            return f"{name}\0"
        return f"{name}\0{found.st_size}\0{found.st_mtime_ns}"


class TarSource:
    """Images inside an uncompressed tar, read in any order at offsets that were listed once."""

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
        with Image.open(io.BytesIO(content)) as image:
            return upright_rgb(image, shrink_to)

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
    """Grey images (N, H, W) or RGB images (N, H, W, 3), uint8."""

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


def all_images(path: Path) -> Source:
    """All images below a folder or inside an uncompressed tar, at any depth."""
    source, _ = find_images(path)
    if not len(source):
        raise OodmlError(
            f"No images ({', '.join(IMAGE_EXTENSIONS)}) in {path}: give a folder that has some, with or without "
            "class folders."
        )
    return source


def find_images(path: Path) -> tuple[FileSource | TarSource, int]:
    """All images of a folder or tar, sorted by name, and how many other files there are."""
    if not path.is_dir():
        return _read_tar(path)
    names, ignored = _images(_walk(path))
    return FileSource(path, names), ignored


def _walk(root: Path) -> Iterable[str]:
    """Names of all files below `root`. A link to a folder above it counts as a file and is not followed."""
    for folder, subfolders, files in os.walk(root, followlinks=True):
        shown = [s for s in subfolders if not s.startswith(".")]
        back = {s for s in shown if _leads_back(root, Path(folder), s)}
        subfolders[:] = sorted(s for s in shown if s not in back)
        below = Path(folder).relative_to(root).as_posix()
        yield from (f if below == "." else f"{below}/{f}" for f in (*files, *back))


def _leads_back(root: Path, folder: Path, name: str) -> bool:
    """Whether a folder in `folder` is a link to `folder`, or to a folder between `root` and it."""
    if not (folder / name).is_symlink():
        return False
    target = (folder / name).resolve()
    above = [each for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return any(each.resolve().is_relative_to(target) for each in above)


def _images(names: Iterable[str]) -> tuple[list[str], int]:
    names = [n for n in names if not PurePosixPath(n).name.startswith(".")]
    images = sorted(n for n in names if n.lower().endswith(IMAGE_EXTENSIONS))
    return images, len(names) - len(images)


def _read_tar(path: Path) -> tuple[TarSource, int]:
    if path.name.lower().endswith((".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
        raise OodmlError(
            f"{path} is compressed, so its images cannot be read in any order. Unpack it (tar xf {path.name}) and "
            "give the folder, or give an uncompressed .tar."
        )
    try:
        with tarfile.open(path, "r:") as archive:
            members = {m.name.removeprefix("./"): m for m in archive if m.isfile()}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise OodmlError(f"{path} cannot be read as an uncompressed tar ({error}). Give a folder or a .tar.") from error
    names, ignored = _images(members)
    offsets = np.array([members[n].offset_data for n in names], dtype=np.int64)
    sizes = np.array([members[n].size for n in names], dtype=np.int64)
    if len(names) and (offsets + sizes).max() > path.stat().st_size:
        raise OodmlError(f"{path} ends before its last image: the copy is incomplete. Copy it again.")
    return TarSource(path, names, offsets, sizes), ignored


def upright_rgb(image: Image.Image, shrink_to: int | None = None) -> Image.Image:
    """Decode: honour the EXIF orientation, convert to RGB (transparent parts become white).

    With `shrink_to` a JPEG is decoded at a half, quarter or eighth of its size where that still leaves twice the
    wanted short side, which is several times quicker for camera images and invisible after the antialiased resize.
    """
    if shrink_to is not None and image.format == "JPEG":
        image.draft("RGB", (2 * shrink_to, 2 * shrink_to))
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 255 instead of scaling them
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def digest(lines: Iterable[str]) -> str:
    """A short digest of text lines."""
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape"))
        total.update(b"\n")
    return total.hexdigest()[:16]
