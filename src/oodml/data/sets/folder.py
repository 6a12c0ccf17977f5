"""`folder`: pictures of your own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from oodml._errors import OodmlError
from oodml._split import Split
from oodml.data._dataset import Dataset, build_dataset
from oodml.data._folders import LAYOUT, PICTURE_EXTENSIONS, read_class_folders
from oodml.data._registries import register_dataset


@register_dataset("folder")
def load_folder(
    root: str | Path | None = None, images_per_class: int | None = None, most_classes: int | None = None
) -> Dataset:
    """Your own pictures: a directory of class folders (jpg, png, webp, bmp), or a tar of one.

    Two levels of folders are read as super-class and class. The default split is the first half of the sorted
    classes against the rest; the transforms are the papers' for photographs. Where time is short, `most_classes` takes
    at most so many classes and `images_per_class` at most so many pictures of each, always the same ones.
    """
    if root is None:
        raise OodmlError(f"The data set 'folder' needs a root (--root): a folder or a .tar laid out as {LAYOUT}.")
    for option, count, least in (("images_per_class", images_per_class, 1), ("most_classes", most_classes, 2)):
        if count is not None and count < least:
            raise OodmlError(f"{option} must be at least {least}, got {count}; leave it out to take all.")
    path = Path(root).expanduser()
    if not path.exists():
        raise OodmlError(f"No folder or tar at {path.absolute()}: check the path. Expected {LAYOUT}.")
    found = read_class_folders(path)
    kinds = f"{', '.join(PICTURE_EXTENSIONS[:-1])} or {PICTURE_EXTENSIONS[-1]}"
    notes = [f"Files ignored, for they are no {kinds} in a class folder: {found.ignored}."] if found.ignored else []
    ds = build_dataset(
        "folder",
        found.source,
        found.class_of_image,
        superclass_of_class=found.superclass_of_class,
        notes=notes,
    )
    if most_classes is not None and most_classes < len(ds.classes):
        drawn = np.sort(np.random.default_rng(0).permutation(len(ds.classes))[:most_classes])
        names = [ds.classes[i] for i in drawn]
        ds = ds.subset(np.flatnonzero(np.isin(ds.labels, drawn)))
        ds = replace(ds, given_split=Split(names[: len(names) // 2], names[len(names) // 2 :]))
    return ds if images_per_class is None else ds.sample(images_per_class)
