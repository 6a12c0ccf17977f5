"""`glyphs`: the data set that comes with the package."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import PIL

from oodml._files import atomic_folder, cache_root, exclusive, write_json
from oodml._split import Split
from oodml.data._dataset import Dataset, Transforms, build_dataset
from oodml.data._glyphs import SCRIPTS, VERSION, Glyphs, draw_glyphs
from oodml.data._registries import register_dataset
from oodml.data._sources import ArraySource, digest

# Letters have a left and a right, and a corner of one is another: no flip, a gentle crop.
TRANSFORMS = Transforms(size=32, short_side=32, crop_scale=(0.7, 1.0), crop_ratio=(0.9, 1 / 0.9), flip=0.0)


@register_dataset("glyphs")
def load_glyphs(quiet: bool = False) -> Dataset:
    """Characters of 17 scripts drawn from matplotlib's fonts: no download, built in seconds, then cached.

    Class = character, super-class = script, 24 pictures of 32 × 32 a class (fonts, rotation ±25°, shear ±.2, scale
    .85–1.15, shift ±2 px); characters that look like another are left out. Default split: every other script, in
    alphabetical order, so that no script stands on both sides.
    """
    tools = digest([version("matplotlib"), PIL.__version__])[:8]
    folder = cache_root() / "glyphs" / f"v{VERSION}-{tools}"
    glyphs = _read(folder)  # without the lock: what is finished also serves from a read-only disk
    if glyphs is None:
        with exclusive(folder.with_name(f"{folder.name}.lock")):
            glyphs = _read(folder) or _build(folder, quiet)
    train = set(sorted(SCRIPTS)[::2])
    classes = sorted(glyphs.script_of_class)
    script = glyphs.script_of_class
    numbers = np.arange(len(glyphs.class_of_image)) % (len(glyphs.class_of_image) // len(classes))
    return build_dataset(
        "glyphs",
        ArraySource(glyphs.pixels, [f"{c}/{n:02}" for c, n in zip(glyphs.class_of_image, numbers, strict=True)]),
        glyphs.class_of_image,
        superclass_of_class=script,
        default_split=Split([c for c in classes if script[c] in train], [c for c in classes if script[c] not in train]),
        transforms=TRANSFORMS,
    )


def _build(folder: Path, quiet: bool) -> Glyphs:
    glyphs = draw_glyphs(quiet)
    facts = {
        "pixels": _checksum(glyphs.pixels),
        "class_of_image": glyphs.class_of_image,
        "script_of_class": glyphs.script_of_class,
    }
    with atomic_folder(folder) as temporary:
        np.save(temporary / "pixels.npy", glyphs.pixels)
        write_json(temporary / "classes.json", facts)
    return glyphs


def _read(folder: Path) -> Glyphs | None:
    """What an earlier call built, or None where there is nothing or it was damaged."""
    try:
        facts = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
        pixels = np.load(folder / "pixels.npy")
        intact = _checksum(pixels) == facts["pixels"]
        return Glyphs(pixels, facts["class_of_image"], facts["script_of_class"]) if intact else None
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _checksum(pixels: np.ndarray) -> str:
    return ArraySource(pixels, []).fingerprint()
