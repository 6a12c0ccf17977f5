"""`cub200`: Caltech-UCSD Birds-200-2011."""

from __future__ import annotations

from pathlib import Path

from oodml.data._dataset import Dataset, build_dataset
from oodml.data._folders import read_class_folders
from oodml.data._published import Published, find, verified
from oodml.data._registries import register_dataset

FACTS = Published(
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

    Default split: the first 100 classes (5,864 pictures) against the last 100 (5,924). Super-classes are derived:
    the last word of the species' name (Albatross, Warbler).
    """
    place = find(FACTS, root)
    listing = None
    if place.is_dir():
        official = place / "CUB_200_2011"
        top = official if official.is_dir() else place
        listing = top / "images.txt"
        place = top / "images" if (top / "images").is_dir() else top
    found = read_class_folders(place)
    families = {name: name.replace("_", " ").split()[-1].split(".")[-1] for name in set(found.class_of_image)}
    ds = build_dataset(
        FACTS.name,
        found.source,
        found.class_of_image,
        superclass_of_class=families,
        notes=["Super-classes are derived from the last word of the species' names; CUB publishes none."],
    )
    return verified(ds, FACTS, strict, _missing(listing, ds))


def _missing(listing: Path | None, ds: Dataset) -> list[str]:
    """Pictures that the official list names and this copy lacks."""
    if listing is None or not listing.is_file():
        return []
    present = {ds.path(i) for i in range(len(ds))}
    listed = (line.split(maxsplit=1)[1] for line in listing.read_text().splitlines() if line.strip())
    return [name for name in listed if name not in present]
