"""`folder`: images of your own, in class folders or in a tar of them; how classes are read from paths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from oodml._errors import OodmlError
from oodml._split import Split
from oodml.data.dataset import Dataset, build_dataset
from oodml.data.load import register_dataset
from oodml.data.sources import IMAGE_EXTENSIONS, FileSource, Source, TarSource, find_images

LAYOUT = "ROOT/CLASS/image.jpg, or ROOT/SUPERCLASS/CLASS/image.jpg"


@register_dataset("folder")
def load_folder(
    root: str | Path | None = None, images_per_class: int | None = None, most_classes: int | None = None
) -> Dataset:
    """Your own images: a folder of class folders (jpg, png, webp, bmp), or an uncompressed tar of one.

    Two levels of folders are read as superclass and class. The default split is the first half of the sorted
    classes against the rest; the transforms are the papers' for photographs. `most_classes` and `images_per_class`
    limit the dataset to so many classes and so many images per class, always the same ones.
    """
    if root is None:
        raise OodmlError(f"The dataset 'folder' needs a root (--root): a folder or a .tar laid out as {LAYOUT}.")
    for option, count, least in (("images_per_class", images_per_class, 1), ("most_classes", most_classes, 2)):
        if count is not None and count < least:
            raise OodmlError(f"{option} must be at least {least}, got {count}; leave it out to take all.")
    path = Path(root).expanduser()
    if not path.exists():
        raise OodmlError(f"No folder or tar at {path.absolute()}: check the path. Expected {LAYOUT}.")
    found = read_class_folders(path)
    kinds = ", ".join(IMAGE_EXTENSIONS)
    notes = [f"Files ignored, not an image ({kinds}) in a class folder: {found.ignored}."] if found.ignored else []
    superclasses = found.superclass_of_class
    ds = build_dataset("folder", found.source, found.class_of_image, superclass_of_class=superclasses, notes=notes)
    if most_classes is not None and most_classes < len(ds.classes):
        drawn = np.sort(np.random.default_rng(0).permutation(len(ds.classes))[:most_classes])
        names = [ds.classes[i] for i in drawn]
        ds = ds.subset(np.flatnonzero(np.isin(ds.labels, drawn)))
        ds = replace(ds, given_split=Split(names[: len(names) // 2], names[len(names) // 2 :]))
    return ds if images_per_class is None else ds.sample(images_per_class)


@dataclass(frozen=True)
class ClassFolders:
    """Images with the class (and superclass) that their folders name."""

    source: Source
    class_of_image: list[str]
    superclass_of_class: dict[str, str] | None
    ignored: int  # files that are not images, or are outside class folders


def read_class_folders(path: Path) -> ClassFolders:
    """Read `path`, a folder of class folders or an uncompressed tar of one."""
    source, ignored = find_images(path)
    if not len(source):
        raise OodmlError(
            f"No images found in {path}. Expected {LAYOUT}, with files ending in {', '.join(IMAGE_EXTENSIONS)}."
        )
    return _classify(path, source, ignored)


def _classify(path: Path, source: FileSource | TarSource, ignored: int) -> ClassFolders:
    names = source.names
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    depth = max(len(f) for f in folders)
    # A tar of `birds/` holds birds/CLASS/image: a folder common to all images is not a superclass.
    while depth > 1 and len({f[:1] for f in folders}) == 1:
        folders = [f[1:] for f in folders]
        depth -= 1
    if depth == 0:
        raise OodmlError(f"The images in {path} are not in class folders. Expected {LAYOUT}.")
    keep = np.array([len(f) == depth for f in folders])
    if depth > 2 or np.any([0 < len(f) < depth for f in folders]):
        shallow, deep = (choose(names, key=lambda name: name.count("/")) for choose in (min, max))
        raise OodmlError(
            f"The images in {path} are at different depths, or too deep ({shallow!r}, {deep!r}). Expected {LAYOUT}."
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
