"""List the pictures below a folder or inside a tar, and read classes off their paths."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from oodml._errors import OodmlError
from oodml.data._sources import FileSource, Source, TarSource

PICTURE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LAYOUT = "ROOT/CLASS/picture.jpg, or ROOT/SUPERCLASS/CLASS/picture.jpg"


@dataclass(frozen=True)
class ClassFolders:
    """Pictures with the class (and super-class) their folders name."""

    source: Source
    class_of_image: list[str]
    superclass_of_class: dict[str, str] | None
    ignored: int  # files that are no pictures, or lie outside class folders


def read_class_folders(path: Path) -> ClassFolders:
    """Read `path`, a folder of class folders or an uncompressed tar of one."""
    source, ignored = _every_picture(path)
    if not len(source):
        raise OodmlError(
            f"No pictures found in {path}. Expected {LAYOUT}, with files ending in {', '.join(PICTURE_EXTENSIONS)}."
        )
    return _classify(path, source, ignored)


def every_picture(path: Path) -> Source:
    """All pictures below a folder or inside an uncompressed tar, wherever they lie: their folders mean nothing."""
    source, _ = _every_picture(path)
    if not len(source):
        raise OodmlError(
            f"No pictures ({', '.join(PICTURE_EXTENSIONS)}) in {path}: give a folder that has some, with or without "
            "class folders."
        )
    return source


def _every_picture(path: Path) -> tuple[FileSource | TarSource, int]:
    """The pictures, and how many files are none."""
    if not path.is_dir():
        return _read_tar(path)
    names, ignored = _pictures(_walk(path))
    return FileSource(path, names), ignored


def _classify(path: Path, source: FileSource | TarSource, ignored: int) -> ClassFolders:
    names = source.names
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    depth = max(len(f) for f in folders)
    # A tar of `birds/` holds birds/CLASS/picture: a single common folder says nothing about the classes.
    while depth > 1 and len({f[:1] for f in folders}) == 1:
        folders = [f[1:] for f in folders]
        depth -= 1
    if depth == 0:
        raise OodmlError(f"The pictures in {path} lie in no class folder. Expected {LAYOUT}.")
    keep = np.array([len(f) == depth for f in folders])
    if depth > 2 or np.any([0 < len(f) < depth for f in folders]):
        shallow, deep = min(names, key=_depth), max(names, key=_depth)
        raise OodmlError(
            f"The pictures in {path} lie at different or too great depths ({shallow!r}, {deep!r}). Expected {LAYOUT}."
        )
    kept = np.flatnonzero(keep)
    chosen = [folders[i] for i in kept]
    if depth == 1:
        classes, superclasses = [f[0] for f in chosen], None
    else:
        pairs = sorted(set(chosen))
        alone = len({c for _, c in pairs}) == len(pairs)  # the class folder's own name suffices
        classes = [c if alone else f"{s}/{c}" for s, c in chosen]
        superclasses = {(c if alone else f"{s}/{c}"): s for s, c in pairs}
    loose = len(names) - len(kept)
    return ClassFolders(source.subset(kept) if loose else source, classes, superclasses, ignored + loose)


def _depth(name: str) -> int:
    return name.count("/")


def _walk(root: Path) -> Iterable[str]:
    """Names of all files below `root`; a link that leads back to where it lies is one of them, for it holds no more."""
    for folder, subfolders, files in os.walk(root, followlinks=True):
        shown = [s for s in subfolders if not s.startswith(".")]
        back = {s for s in shown if _leads_back(root, Path(folder), s)}
        subfolders[:] = sorted(s for s in shown if s not in back)
        below = Path(folder).relative_to(root).as_posix()
        yield from (f if below == "." else f"{below}/{f}" for f in (*files, *back))


def _leads_back(root: Path, folder: Path, name: str) -> bool:
    """Whether a folder in `folder` is a link to it, or to one of those that were walked through to get there."""
    if not (folder / name).is_symlink():
        return False
    target = (folder / name).resolve()
    above = [each for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return any(each.resolve().is_relative_to(target) for each in above)


def _pictures(names: Iterable[str]) -> tuple[list[str], int]:
    names = [n for n in names if not PurePosixPath(n).name.startswith(".")]
    pictures = sorted(n for n in names if n.lower().endswith(PICTURE_EXTENSIONS))
    return pictures, len(names) - len(pictures)


def _read_tar(path: Path) -> tuple[TarSource, int]:
    if path.name.lower().endswith((".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
        raise OodmlError(
            f"{path} is compressed, so its pictures cannot be read in any order. Unpack it (tar xf {path.name}) and "
            "give the folder, or give an uncompressed .tar."
        )
    try:
        with tarfile.open(path, "r:") as archive:
            members = {m.name.removeprefix("./"): m for m in archive if m.isfile()}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise OodmlError(f"{path} cannot be read as an uncompressed tar ({error}). Give a folder or a .tar.") from error
    names, ignored = _pictures(members)
    offsets = np.array([members[n].offset_data for n in names], dtype=np.int64)
    sizes = np.array([members[n].size for n in names], dtype=np.int64)
    if len(names) and (offsets + sizes).max() > path.stat().st_size:
        raise OodmlError(f"{path} ends before its last picture: the copy is incomplete. Copy it again.")
    return TarSource(path, names, offsets, sizes), ignored
