"""Published archives: `cub200`, `cars196`. Where they are looked for, and a comparison with the published counts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oodml._errors import OodmlError
from oodml.data.dataset import Dataset, build_dataset
from oodml.data.load import register_dataset
from oodml.data.sets.folder import read_class_folders
from oodml.data.sources import FileSource, Source


@dataclass(frozen=True)
class Published:
    """What is known of a published dataset, to find a copy and to check it."""

    name: str
    title: str
    address: str
    layouts: tuple[str, ...]
    classes: int
    images: int
    train_images: int
    test_images: int


def default_root(name: str) -> Path:
    """`$OODML_DATA/NAME`, else `./data/NAME`."""
    return Path(os.environ.get("OODML_DATA") or "data").expanduser() / name


def find(facts: Published, root: str | Path | None) -> Path:
    """The first place that holds the dataset: a tar inside the root, the root itself, or a tar next to it."""
    start = default_root(facts.name) if root is None else Path(root).expanduser()
    looked = [start / f"{facts.name}.tar", start, start.with_name(f"{start.name}.tar")]
    for place in looked:
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            return place
    places = ", ".join(str(place.absolute()) for place in looked)
    raise OodmlError(
        f"The dataset {facts.name!r} ({facts.title}) was not found. Looked at {places}. "
        f"Nothing is downloaded: get it from {facts.address} and arrange it as "
        f"{'; or as '.join(facts.layouts)}; then pass root=, or set OODML_DATA to the folder that holds {facts.name}/."
    )


def verified(ds: Dataset, facts: Published, strict: bool, missing: Sequence[str] = ()) -> Dataset:
    """Compare with the published counts; a difference is a warning, or an error with `strict`."""
    train = (ds.labels < len(ds.classes) // 2).sum()  # the default split of every published dataset
    expected = (facts.classes, facts.images, facts.train_images, facts.test_images)
    found = (len(ds.classes), len(ds), int(train), int(len(ds) - train))
    if found == expected:
        return ds
    names = ("classes", "images", "images in the default training classes", "images in the default test classes")
    differences = [
        f"{have:,} {what} instead of {want:,} ({have - want:+,})"
        for what, want, have in zip(names, expected, found, strict=True)
        if have != want
    ]
    which = f" Missing, for instance: {', '.join(missing[:3])}." if missing else ""
    note = (
        f"This copy of {facts.title} is not the published one: {'; '.join(differences)}.{which} "
        f"Scores will differ slightly from the literature; the complete set is at {facts.address}"
    )
    if strict:
        raise OodmlError(note)
    return replace(ds, warnings=(*ds.warnings, note))


CUB = Published(
    name="cub200",
    title="CUB-200-2011",
    address="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    layouts=(
        "CUB_200_2011/images/001.Black_footed_Albatross/*.jpg (the official archive, unpacked)",
        "class folders 001.Black_footed_Albatross/*.jpg, or a tar of them",
    ),
    classes=200,
    images=11788,
    train_images=5864,
    test_images=5924,
)


@register_dataset("cub200", paper="Wah et al., The Caltech-UCSD Birds-200-2011 Dataset, 2011")
def load_cub200(root: str | Path | None = None, strict: bool = False) -> Dataset:
    """CUB-200-2011: 200 bird species, 11,788 photographs.

    Default split: the first 100 classes (5,864 images) against the last 100 (5,924). Superclasses are derived:
    the last word of the species' name (Albatross, Warbler).
    """
    place = find(CUB, root)
    listing = None
    if place.is_dir():
        official = place / "CUB_200_2011"
        top = official if official.is_dir() else place
        listing = top / "images.txt"
        place = top / "images" if (top / "images").is_dir() else top
    found = read_class_folders(place)
    families = {name: name.replace("_", " ").split()[-1].split(".")[-1] for name in set(found.class_of_image)}
    ds = build_dataset(
        CUB.name,
        found.source,
        found.class_of_image,
        superclass_of_class=families,
        notes=["Superclasses are derived from the last word of the species' names; CUB publishes none."],
    )
    return verified(ds, CUB, strict, _not_found(listing, ds))


def _not_found(listing: Path | None, ds: Dataset) -> list[str]:
    """Images that the official list names and this copy lacks."""
    if listing is None or not listing.is_file():
        return []
    present = {ds.path(i) for i in range(len(ds))}
    listed = (line.split(maxsplit=1)[1] for line in listing.read_text().splitlines() if line.strip())
    return [name for name in listed if name not in present]


CARS = Published(
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

    Default split: the first 98 of the sorted classes (8,054 images) against the rest (8,131). Superclasses are
    derived: the body type, which is the last word before the year (SUV, Sedan, Cab).
    """
    place = find(CARS, root)
    source, classes, missing = _read_cars(place)
    ds = build_dataset(
        CARS.name,
        source,
        classes,
        superclass_of_class={name: body_type(name) for name in set(classes)},
        notes=["Superclasses are derived: the last word before the year, mostly the body type; none are published."],
    )
    return verified(ds, CARS, strict, missing)


def body_type(class_name: str) -> str:
    """The last word before the year: `Acura RL Sedan 2012` → `Sedan`."""
    words = re.sub(r"\s*\b(19|20)\d\d$", "", class_name.replace("_", " ")).split()
    return words[-1] if words else class_name


def _read_cars(place: Path) -> tuple[Source, list[str], list[str]]:
    if place.is_dir():
        if (place / "cars_annos.mat").is_file():
            return _present(place, _annotated(place / "cars_annos.mat", ""))
        if (place / "cars_train").is_dir() and (place / "cars_test").is_dir():
            return _present(place, _train_and_test(place))
    found = read_class_folders(place)
    return found.source, found.class_of_image, []


def _present(root: Path, listed: list[tuple[str, str]]) -> tuple[Source, list[str], list[str]]:
    """Keep the images that exist, sorted by class and path; name the others."""
    listed = sorted(listed)
    there = [(c, n) for c, n in listed if (root / n).is_file()]
    missing = [n for _, n in listed if not (root / n).is_file()]
    if not there:
        raise OodmlError(f"None of the {len(listed):,} images listed by the annotations is below {root.absolute()}.")
    return FileSource(root, [n for _, n in there]), [c for c, _ in there], missing


def _train_and_test(root: Path) -> list[tuple[str, str]]:
    meta = _first(root, "cars_meta.mat")
    names = [_folder_name(n) for n in np.atleast_1d(_load_mat(meta)["class_names"])]
    train = _annotated(_first(root, "cars_train_annos.mat"), "cars_train/", names)
    test = _annotated(_first(root, "cars_test_annos_withlabels.mat"), "cars_test/", names)
    return train + test


def _first(root: Path, name: str) -> Path:
    for place in (root / name, root / "devkit" / name):
        if place.is_file():
            return place
    raise OodmlError(f"{root.absolute()} has no {name}, nor has its devkit/. Download it from {CARS.address}")


def _annotated(path: Path, prefix: str, names: list[str] | None = None) -> list[tuple[str, str]]:
    """(class name, image path) of every row of an annotation file."""
    content = _load_mat(path)
    names = names or [_folder_name(n) for n in np.atleast_1d(content["class_names"])]
    rows = np.atleast_1d(content["annotations"])
    fields = rows.dtype.names or ()
    field = "relative_im_path" if "relative_im_path" in fields else "fname"
    if "class" not in fields:
        raise OodmlError(f"{path} lists no classes; cars_test_annos_withlabels.mat from {CARS.address} does.")
    return [(names[int(c) - 1], f"{prefix}{n}") for c, n in zip(rows["class"], rows[field], strict=True)]


def _folder_name(class_name: object) -> str:
    """`Ram C/V Cargo Van` cannot name a folder; copies in class folders have `Ram C-V Cargo Van`."""
    return str(class_name).strip().replace("/", "-")


def _load_mat(path: Path) -> dict:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return loadmat(path, squeeze_me=True)
    except (MatReadError, ValueError, NotImplementedError, OSError, TypeError) as error:
        raise OodmlError(
            f"{path} cannot be read as a MATLAB file ({error}). Download it again from {CARS.address}"
        ) from error
