"""What the cache folder holds, and its removal: decoded images and features are made again when they are needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from oodml._files import cache_root, explained

KINDS = ("images", "features", "glyphs")  # all that can be made again; copies of remote studies are not touched


class Entry(NamedTuple):
    """One decoded dataset, one file of features, or one rendering of the embedded dataset."""

    kind: str
    path: Path
    size: int  # bytes
    used: float  # when it was last read or written, as far as the file system tells (seconds since 1970)

    @property
    def place(self) -> str:
        """Where the images of a decoded dataset came from; "" where that is not known."""
        try:
            return str(json.loads((self.path / "meta.json").read_text(encoding="utf-8"))["place"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def cached() -> list[Entry]:
    """Every entry of the cache, the largest first."""
    found = []
    for kind in KINDS:
        folder = cache_root() / kind
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.suffix != ".lock":
                stats = [p.stat() for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file()]
                used = max((max(s.st_atime, s.st_mtime) for s in stats), default=0.0)
                found.append(Entry(kind, path, sum(s.st_size for s in stats), used))
    return sorted(found, key=lambda entry: -entry.size)


def remove(entries: Iterable[Entry]) -> None:
    """Delete entries; a program that has one open keeps it until it ends. Lock files stay, they are empty."""
    for entry in entries:
        with explained("remove", entry.path):
            if entry.path.is_dir():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink(missing_ok=True)
