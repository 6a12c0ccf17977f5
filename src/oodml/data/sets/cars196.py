"""`cars196`: Stanford Cars."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from oodml._errors import OodmlError
from oodml.data._dataset import Dataset, build_dataset
from oodml.data._folders import read_class_folders
from oodml.data._published import Published, find, verified
from oodml.data._registries import register_dataset
from oodml.data._sources import FileSource, Source

FACTS = Published(
    name="cars196",
    title="Stanford Cars 196",
    address="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    layouts=(
        "car_ims/*.jpg with cars_annos.mat (the official archive)",
        "cars_train/*.jpg and cars_test/*.jpg with devkit/cars_meta.mat, devkit/cars_train_annos.mat and "
        "cars_test_annos_withlabels.mat",
        "class folders 'AM General Hummer SUV 2000'/*.jpg, or a tar of them",
    ),
    classes=196,
    images=16185,
    train_images=8054,
    test_images=8131,
)


@register_dataset(
    "cars196", paper="Krause et al., 3D Object Representations for Fine-Grained Categorization, 3dRR 2013"
)
def load_cars196(root: str | Path | None = None, strict: bool = False) -> Dataset:
    """Stanford Cars: 196 models of cars, 16,185 photographs.

    Default split: the first 98 of the sorted classes (8,054 pictures) against the rest (8,131). Super-classes are
    derived: the body type, which is the last word before the year (SUV, Sedan, Cab).
    """
    place = find(FACTS, root)
    source, classes, missing = _read(place)
    ds = build_dataset(
        FACTS.name,
        source,
        classes,
        superclass_of_class={name: body_type(name) for name in set(classes)},
        notes=["Super-classes are derived: the last word before the year, mostly the body type; none are published."],
    )
    return verified(ds, FACTS, strict, missing)


def body_type(class_name: str) -> str:
    """The last word before the year: `Acura RL Sedan 2012` → `Sedan`."""
    words = re.sub(r"\s*\b(19|20)\d\d$", "", class_name.replace("_", " ")).split()
    return words[-1] if words else class_name


def _read(place: Path) -> tuple[Source, list[str], list[str]]:
    if place.is_dir():
        if (place / "cars_annos.mat").is_file():
            return _present(place, _annotated(place / "cars_annos.mat", ""))
        if (place / "cars_train").is_dir() and (place / "cars_test").is_dir():
            return _present(place, _train_and_test(place))
    found = read_class_folders(place)
    return found.source, found.class_of_image, []


def _present(root: Path, listed: list[tuple[str, str]]) -> tuple[Source, list[str], list[str]]:
    """Keep the pictures that exist, sorted by class and path; name the others."""
    listed = sorted(listed)
    there = [(c, n) for c, n in listed if (root / n).is_file()]
    missing = [n for _, n in listed if not (root / n).is_file()]
    if not there:
        raise OodmlError(f"None of the {len(listed):,} pictures listed by the annotations is below {root.absolute()}.")
    return FileSource(root, [n for _, n in there]), [c for c, _ in there], missing


def _train_and_test(root: Path) -> list[tuple[str, str]]:
    meta = _first(root, "cars_meta.mat")
    names = [_folder_name(n) for n in np.atleast_1d(_load(meta)["class_names"])]
    train = _annotated(_first(root, "cars_train_annos.mat"), "cars_train/", names)
    test = _annotated(_first(root, "cars_test_annos_withlabels.mat"), "cars_test/", names)
    return train + test


def _first(root: Path, name: str) -> Path:
    for place in (root / name, root / "devkit" / name):
        if place.is_file():
            return place
    raise OodmlError(f"{root.absolute()} lacks {name} (looked there and in devkit/); it comes from {FACTS.address}")


def _annotated(path: Path, prefix: str, names: list[str] | None = None) -> list[tuple[str, str]]:
    """(class name, picture path) of every row of an annotation file."""
    content = _load(path)
    names = names or [_folder_name(n) for n in np.atleast_1d(content["class_names"])]
    rows = np.atleast_1d(content["annotations"])
    fields = rows.dtype.names or ()
    field = "relative_im_path" if "relative_im_path" in fields else "fname"
    if "class" not in fields:
        raise OodmlError(f"{path} holds no classes; cars_test_annos_withlabels.mat from {FACTS.address} does.")
    return [(names[int(c) - 1], f"{prefix}{n}") for c, n in zip(rows["class"], rows[field], strict=True)]


def _folder_name(class_name: object) -> str:
    """`Ram C/V Cargo Van` names no folder; every class-folder copy writes `Ram C-V Cargo Van`."""
    return str(class_name).strip().replace("/", "-")


def _load(path: Path) -> dict:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return loadmat(path, squeeze_me=True)
    except (MatReadError, ValueError, NotImplementedError, OSError, TypeError) as error:
        raise OodmlError(
            f"{path} cannot be read as a MATLAB file ({error}). Get it again from {FACTS.address}"
        ) from error
