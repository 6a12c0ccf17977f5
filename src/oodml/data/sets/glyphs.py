"""`glyphs`: the dataset that comes with the package, characters of seventeen scripts drawn from matplotlib's fonts."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont

from oodml._files import atomic_folder, cache_root, exclusive, write_json
from oodml._progress import track
from oodml._split import Split
from oodml.data.dataset import Dataset, Transforms, build_dataset
from oodml.data.load import register_dataset
from oodml.data.sources import ArraySource, digest

VERSION = 6  # part of the cache's name: raise it when the images change
SIZE = 32  # side of an image
IMAGES_PER_CLASS = 24
CLASSES_PER_SCRIPT = 24
CANDIDATES_PER_SCRIPT = 60
# Of two characters that look alike (A, Α and А) one is left out: if the cosine of their mean images is above the first
# number (the second within a script, whose characters share strokes), or if in some pair of fonts the cosine of the
# upright characters is above the third.
LOOK_ALIKE_MEAN, LOOK_ALIKE_MEAN_OWN, LOOK_ALIKE_UPRIGHT = 0.93, 0.96, 0.91
FAINT = 128  # the brightest pixel of an image must reach this, or its lines are too thin for its size
ROTATION, SHEAR, SCALE = 25.0, 0.2, (0.85, 1.15)  # degrees, share, factor
# Pixels to each side. It makes raw pixels a poor embedding, as they are for photographs: recall@1 is 0.66 on the
# held-out scripts, and 0.92 without it.
SHIFT = 2.0
_CANVAS = 2 * SIZE  # drawn at twice the size, then averaged down
_INK = 40  # longer side of a character on the canvas before it is rotated, sheared, scaled and shifted

# Inclusive ranges of code points. Of two look-alikes the one of the earlier script is kept, so scripts with the fewest
# characters come first.
SCRIPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "Latin": ((0x0041, 0x005A), (0x0061, 0x007A)),
    "Greek": ((0x0391, 0x03C9),),
    "Hebrew": ((0x05D0, 0x05EA),),
    "Ogham": ((0x1681, 0x169A),),
    "Old Italic": ((0x10300, 0x1031E),),
    "Lao": ((0x0E81, 0x0EAE), (0x0ED0, 0x0ED9)),
    "Cyrillic": ((0x0402, 0x045F),),
    "Tifinagh": ((0x2D30, 0x2D67),),
    "Arabic": ((0x0621, 0x064A),),
    "Armenian": ((0x0531, 0x0586),),
    "Arrows": ((0x2190, 0x21FF),),
    "Braille": ((0x2801, 0x283F),),
    "Canadian": ((0x1401, 0x166C),),
    "Georgian": ((0x10A0, 0x10C5), (0x10D0, 0x10F8)),
    "Math": ((0x2200, 0x22FF),),
    "Nko": ((0x07C0, 0x07EA),),
    "Symbols": ((0x2600, 0x26B8),),
}
_WITHOUT_UNICODE = (
    "cmb10",
    "cmmi10",
    "cmr10",
    "cmss10",
    "cmti10",
    "cmtt10",
)  # only their ASCII has the usual codes
# A mirrored letter, or a part of one, may be another letter: no flip, and only small crops.
TRANSFORMS = Transforms(size=32, short_side=32, crop_scale=(0.7, 1.0), crop_ratio=(0.9, 1 / 0.9), flip=0.0)


@register_dataset("glyphs")
def load_glyphs(quiet: bool = False) -> Dataset:
    """Characters of 17 scripts drawn from matplotlib's fonts: no download, built in seconds, then cached.

    Class = character, superclass = script, 24 images of 32 × 32 per class (fonts, rotation ±25°, shear ±0.2, scale
    0.85–1.15, shift ±2 px); characters that look like another are left out. Default split: every other script, in
    alphabetical order, so that no script is on both sides.
    """
    tools = digest([version("matplotlib"), PIL.__version__])[:8]
    folder = cache_root() / "glyphs" / f"v{VERSION}-{tools}"
    glyphs = _read(folder)  # without the lock: a finished cache is read from a read-only disk too
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
    """What an earlier call built; None if there is nothing, or if it is damaged."""
    try:
        facts = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
        pixels = np.load(folder / "pixels.npy")
        intact = _checksum(pixels) == facts["pixels"]
        return Glyphs(pixels, facts["class_of_image"], facts["script_of_class"]) if intact else None
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _checksum(pixels: np.ndarray) -> str:
    return ArraySource(pixels, []).fingerprint()


@dataclass(frozen=True)
class Glyphs:
    """Images (N, 32, 32) uint8, white on black, class after class; and the script of every class."""

    pixels: np.ndarray
    class_of_image: list[str]
    script_of_class: dict[str, str]


class _Class(NamedTuple):
    name: str
    script: str
    images: np.ndarray  # (IMAGES_PER_CLASS, SIZE, SIZE) uint8


class _Candidate(NamedTuple):
    script: str
    char: str
    upright: list[Image.Image]  # in every font that has it


def draw_glyphs(quiet: bool = False) -> Glyphs:
    """Take characters of the scripts in turn, and keep each that looks like none kept so far. Deterministic.

    Shapes are compared first, because they are quick to draw and find most look-alikes.
    """
    candidates = _candidates()
    same_shape = _same_shape(candidates)
    wanted = dict.fromkeys(SCRIPTS, CLASSES_PER_SCRIPT)  # characters still to find
    kept: list[_Class] = []
    kept_rows: list[int] = []
    directions = np.zeros((len(SCRIPTS) * CLASSES_PER_SCRIPT, SIZE * SIZE))  # of the kept classes' mean images
    for i, (script, char, upright) in enumerate(track(candidates, "Drawing glyphs", quiet=quiet)):
        if not wanted[script] or same_shape[i, kept_rows].any():
            continue
        images = _draw_class(char, upright)
        direction = _unit(images.mean(axis=0).reshape(1, -1))[0]
        # einsum, not a matrix product: this is too small for several threads
        cosines = np.einsum("ij,j->i", directions[: len(kept)], direction)
        limits = np.where([c.script == script for c in kept], LOOK_ALIKE_MEAN_OWN, LOOK_ALIKE_MEAN)
        if (cosines > limits).any() or images.max(axis=(1, 2)).min() < FAINT:
            continue
        directions[len(kept)] = direction
        kept.append(_Class(class_name(script, char), script, images))
        kept_rows.append(i)
        wanted[script] -= 1
    kept.sort(key=lambda c: c.name)
    return Glyphs(
        np.concatenate([c.images for c in kept]),
        [c.name for c in kept for _ in range(IMAGES_PER_CLASS)],
        {c.name: c.script for c in kept},
    )


def _candidates() -> list[_Candidate]:
    """Characters that all their fonts can draw: the first of every script, then the second of every script, ..."""
    coverage = _font_coverage()
    rounds = zip_longest(*([(script, char) for char in _characters(script, coverage)] for script in SCRIPTS))
    found = []
    for script, char in (candidate for turn in rounds for candidate in turn if candidate is not None):
        fonts = [str(path) for path, chars in coverage.items() if char in chars]
        upright = [image for font in fonts if (image := _draw_upright(char, font))]
        if len(upright) == len(fonts):
            found.append(_Candidate(script, char, upright))
    return found


def _same_shape(candidates: list[_Candidate]) -> np.ndarray:
    """Whether two characters have the same shape in some pair of fonts: (n, n) bool."""
    shapes = [np.stack([_shape(p) for p in c.upright[:8]]) for c in candidates]  # 8: DejaVu, which has every script
    starts = np.cumsum([0, *(len(s) for s in shapes[:-1])])
    rows = _unit(np.concatenate(shapes))
    same = rows @ rows.T > LOOK_ALIKE_UPRIGHT
    return np.logical_or.reduceat(np.logical_or.reduceat(same, starts, axis=0), starts, axis=1)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def class_name(script: str, char: str) -> str:
    """A name that is readable and valid as a file name: `Greek small alpha`, `Braille dots-12`."""
    words = unicodedata.name(char).lower().replace("old italic", "").split()
    noise = {*script.lower().split(), "letter", "syllabics", "pattern"}
    return " ".join([script, *(w for w in words if w not in noise)])


def _font_coverage() -> dict[Path, frozenset[str]]:
    """The characters of every usable font."""
    import matplotlib
    from matplotlib.ft2font import FT2Font

    coverage = {}
    for path in sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf")):
        if path.stem in _WITHOUT_UNICODE:
            coverage[path] = frozenset(chr(c) for c in range(128) if chr(c).isalpha())
        elif path.stem.startswith(("DejaVu", "STIXGeneral")) and "Display" not in path.stem:
            coverage[path] = frozenset(map(chr, FT2Font(str(path)).get_charmap()))
    return coverage


def _characters(script: str, coverage: dict[Path, frozenset[str]]) -> list[str]:
    """Basic characters of a script in a seeded order; accented forms (`… WITH …`) are variants, not characters."""
    available = frozenset().union(*coverage.values())
    chars = [
        chr(code)
        for first, last in SCRIPTS[script]
        for code in range(first, last + 1)
        if chr(code) in available
        and unicodedata.category(chr(code)) in ("Lu", "Ll", "Lo", "Nd", "Sm", "So")
        and " WITH " not in unicodedata.name(chr(code), "? WITH ?")
    ]
    chosen = np.random.default_rng(ord(chars[0])).permutation(len(chars))[:CANDIDATES_PER_SCRIPT]
    return [chars[i] for i in chosen]


def _draw_class(char: str, upright: list[Image.Image]) -> np.ndarray:
    """All images of one character: every font equally often, each image transformed at random."""
    rng = np.random.default_rng((VERSION, ord(char)))
    fonts = rng.permutation(np.arange(IMAGES_PER_CLASS) % len(upright))
    return np.stack([_move(upright[font], rng) for font in fonts])


def _move(upright: Image.Image, rng: np.random.Generator) -> np.ndarray:
    angle = np.deg2rad(rng.uniform(-ROTATION, ROTATION))
    shear = np.array([[1, rng.uniform(-SHEAR, SHEAR)], [0, 1]])
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    backwards = np.linalg.inv(rng.uniform(*SCALE) * rotation @ shear)  # Pillow asks where an output pixel comes from
    centre = np.full(2, _CANVAS / 2)
    offset = centre - backwards @ (centre + rng.uniform(-SHIFT, SHIFT, 2) * (_CANVAS / SIZE))
    matrix = (*backwards[0], offset[0], *backwards[1], offset[1])
    moved = upright.transform((_CANVAS, _CANVAS), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(moved.reduce(2))


def _draw_upright(char: str, font: str) -> Image.Image | None:
    """The character, white on black, its longer side `_INK`, in the middle of the canvas."""
    left, top, right, bottom = _font(font, 100).getbbox(char)
    longer = max(right - left, bottom - top)
    if longer <= 0:
        return None
    sized = _font(font, round(100 * _INK / longer))
    left, top, right, bottom = sized.getbbox(char)
    image = Image.new("L", (_CANVAS, _CANVAS))
    corner = ((_CANVAS - right - left) / 2, (_CANVAS - bottom - top) / 2)
    ImageDraw.Draw(image).text(corner, char, fill=255, font=sized)
    return image if image.getbbox() else None


def _shape(upright: Image.Image) -> np.ndarray:
    """The character stretched to a square, so that a wide and a narrow K are the same shape; a bar stays a bar."""
    left, top, right, bottom = upright.getbbox() or (0, 0, _CANVAS, _CANVAS)
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    half = max(right - left, bottom - top) / 2
    half_x, half_y = max((right - left) / 2, half / 3), max((bottom - top) / 2, half / 3)
    box = (middle_x - half_x, middle_y - half_y, middle_x + half_x, middle_y + half_y)
    return np.asarray(upright.resize((16, 16), Image.Resampling.BOX, box), dtype=np.float32).reshape(-1)


@lru_cache(maxsize=256)
def _font(path: str, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine draws the same glyph whatever text shaping libraries are installed.
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
