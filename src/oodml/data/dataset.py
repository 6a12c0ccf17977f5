"""`Dataset`: labelled images, their classes, and the transforms that are right for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from PIL import Image

from oodml._errors import OodmlError, unknown_name
from oodml._split import Split
from oodml.data.sources import Source, digest


@dataclass(frozen=True)
class Transforms:
    """How images of a dataset become network input. A flip or a crop of 0.08 is right for birds and wrong for letters.

    Training, `train="resized-crop"`: a random crop of a share `crop_scale` of the image's area with a ratio within
    `crop_ratio`, resized to `size` × `size`, flipped with probability `flip` (the papers' transform).
    Training, `train="crop"`: the image is squeezed to `short_side` × `short_side` and a random `size` × `size`
    window is cut, then flipped (Sharing Matters).
    Evaluation: the short side is resized to `short_side`, then the centre `size` × `size` is cut.

    `cache_side`: training views are cut from images whose short side is at most this (None: `short_side`). An image
    that is no larger is kept as it is, so that its training views are those of the original.
    """

    size: int = 224
    short_side: int = 256
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    train: str = "resized-crop"
    cache_side: int | None = None

    def __post_init__(self) -> None:
        low, high = self.crop_scale
        narrow, wide = self.crop_ratio
        if not 0 < low <= high <= 1:
            raise OodmlError(f"crop_scale must hold two shares with 0 < low <= high <= 1, got {self.crop_scale}.")
        if not 0 < narrow <= wide:
            raise OodmlError(f"crop_ratio must hold two ratios with 0 < low <= high, got {self.crop_ratio}.")
        if not 0 <= self.flip <= 1:
            raise OodmlError(f"flip is a probability between 0 and 1, got {self.flip}.")
        if not 1 <= self.size <= self.short_side:
            raise OodmlError(
                f"The output size {self.size} must be between 1 and the short side it is cut from, {self.short_side}."
            )
        if self.train not in ("resized-crop", "crop"):
            raise unknown_name("training transform", self.train, ("resized-crop", "crop"))
        if self.cache_side is not None and self.cache_side < self.short_side:
            raise OodmlError(
                f"cache_side {self.cache_side} is smaller than the short side of evaluation views, {self.short_side}: "
                f"take a larger one, or leave it out for {self.short_side}."
            )

    def override(self, **values: Any) -> Transforms:
        """These transforms with those of `values` that are not None."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images.

    labels        int64 (N,), positions in `classes`
    superclasses  one per class, or None
    fingerprint   changes when the source does
    notes         remarks, such as how superclasses were derived
    warnings      problems: missing images, classes of one image
    """

    name: str
    labels: np.ndarray
    classes: list[str]
    source: Source
    fingerprint: str
    given_split: Split | None = None  # the default split; None: the first half of the classes against the rest
    superclasses: list[str] | None = None
    transforms: Transforms = field(default_factory=Transforms)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    parent: tuple[Dataset, np.ndarray] | None = field(default=None, repr=False)  # where a subset was taken from

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} images, {len(self.classes)} classes)"

    @property
    def default_split(self) -> Split:
        """The split that is used when no other is given; a dataset of one class has none."""
        half = len(self.classes) // 2
        split = self.given_split or Split(self.classes[:half], self.classes[half:])
        return replace(split, name="default", dataset=self.name)

    @property
    def image_size(self) -> int:
        """Side in pixels of the square images that a network is given."""
        return self.transforms.size

    def image(self, i: int) -> Image.Image:
        """Image `i`, whole, upright, RGB."""
        return self.source.image(int(i))

    def path(self, i: int) -> str:
        """The name of image `i`: its path below the root of the dataset."""
        return self.source.name(int(i))

    def class_ids(self, class_names: Sequence[str]) -> np.ndarray:
        """Positions of `class_names` in `classes`."""
        position = {name: i for i, name in enumerate(self.classes)}
        for name in class_names:
            if name not in position:
                raise unknown_name(f"class of dataset {self.name!r}:", name, self.classes)
        return np.array([position[name] for name in class_names], dtype=np.int64)

    def indices_of(self, class_names: Sequence[str]) -> np.ndarray:
        """Positions of all images of these classes, ascending, int64."""
        return np.flatnonzero(np.isin(self.labels, self.class_ids(class_names)))

    def subset(self, indices: Sequence[int] | np.ndarray) -> Dataset:
        """The images at `indices`. Classes and their numbers stay, so labels mean the same in both."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.ndim != 1 or (len(indices) and not (indices.min() >= 0 and indices.max() < len(self))):
            raise OodmlError(f"A subset of {self!r} needs a flat list of positions between 0 and {len(self) - 1}.")
        root, rows = (self, indices) if self.parent is None else (self.parent[0], self.parent[1][indices])
        return replace(
            self,
            labels=self.labels[indices],
            source=self.source.subset(indices),
            fingerprint=digest([root.fingerprint, rows.tobytes().hex()]),
            parent=(root, rows),
        )

    def sample(self, images_per_class: int, seed: int = 0) -> Dataset:
        """At most `images_per_class` images of every class, drawn with `seed`."""
        if images_per_class < 1:
            raise OodmlError(f"images_per_class must be at least 1, got {images_per_class}.")
        order = np.random.default_rng(seed).permutation(len(self))
        order = order[np.argsort(self.labels[order], kind="stable")]
        sizes = np.bincount(self.labels, minlength=len(self.classes))
        rank_in_class = np.arange(len(self)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.subset(np.sort(order[rank_in_class < images_per_class]))


def build_dataset(
    name: str,
    source: Source,
    class_of_image: Sequence[str],
    *,
    superclass_of_class: dict[str, str] | None = None,
    default_split: Split | None = None,
    notes: Sequence[str] = (),
    **fields: Any,
) -> Dataset:
    """Make a `Dataset` from a source and the class name of every image.

    Classes are sorted; the default split is the first half of them against the rest unless another is given.
    """
    if len(class_of_image) != len(source):
        raise OodmlError(f"{name!r}: {len(source)} images but {len(class_of_image)} class names: give one per image.")
    if not len(source):
        raise OodmlError(f"{name!r} has no images.")
    classes, labels, sizes = np.unique(np.asarray(class_of_image, dtype=str), return_inverse=True, return_counts=True)
    names = [str(c) for c in classes]
    single = [c for c, size in zip(names, sizes, strict=True) if size == 1]
    return Dataset(
        name=name,
        labels=labels.astype(np.int64).reshape(-1),
        classes=names,
        source=source,
        fingerprint=digest([name, source.fingerprint(), *class_of_image]),
        superclasses=None if superclass_of_class is None else [superclass_of_class[c] for c in names],
        given_split=default_split,
        notes=tuple(notes),
        warnings=(_single_image_warning(single),) if single else (),
        **fields,
    )


def _single_image_warning(classes: list[str]) -> str:
    shown = ", ".join(repr(c) for c in classes[:5]) + (f" and {len(classes) - 5} more" if len(classes) > 5 else "")
    plural = "classes have" if len(classes) > 1 else "class has"
    return (
        f"{len(classes)} {plural} a single image and cannot form a positive pair: {shown}. Such images are kept as "
        "negatives; add images, or remove the class folders."
    )
