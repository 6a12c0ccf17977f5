"""Draw the pictures of `glyphs`: characters of seventeen scripts from the fonts that matplotlib ships."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from oodml._progress import track

VERSION = 2  # part of the cache's name: raise it when the pictures change
SIZE = 32  # side of a picture
IMAGES_PER_CLASS = 24
CLASSES_PER_SCRIPT = 24
CANDIDATES_PER_SCRIPT = 60
# Of two characters that look alike (A, Α and А) one is left out: the cosine of their mean pictures is above the first
# number, or in some pair of fonts the cosine of the upright characters is above the second.
LOOK_ALIKE_MEAN, LOOK_ALIKE_UPRIGHT = 0.93, 0.91
ROTATION, SHEAR, SCALE = 25.0, 0.2, (0.85, 1.15)  # degrees, share, factor
_CANVAS = 2 * SIZE  # drawn at twice the size, then averaged down
_INK = 44  # longer side of a character on the canvas before it is rotated, sheared and scaled

# Inclusive ranges of code points. Of two look-alikes the earlier script keeps its own: those with the fewest
# characters to spare stand first.
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
_WITHOUT_UNICODE = ("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10")  # only ASCII is where its names say


@dataclass(frozen=True)
class Glyphs:
    """Pictures (N, 32, 32) uint8, white on black, class after class; and the script of every class."""

    pixels: np.ndarray
    class_of_image: list[str]
    script_of_class: dict[str, str]


class _Candidate(NamedTuple):
    name: str
    script: str
    pictures: np.ndarray  # (IMAGES_PER_CLASS, SIZE, SIZE) uint8
    shapes: np.ndarray  # (fonts, 256) float32: the upright character in each of its fonts, 16 × 16


def draw_glyphs(quiet: bool = False) -> Glyphs:
    """Draw all candidates, then keep those that look like no other; deterministic."""
    coverage = _font_coverage()
    work = [(script, char) for script in SCRIPTS for char in _characters(script, coverage)]
    candidates = [_draw_class(script, char, coverage) for script, char in track(work, "Drawing glyphs", quiet=quiet)]
    kept = _without_look_alikes([c for c in candidates if c is not None])
    return Glyphs(
        np.concatenate([c.pictures for c in kept]),
        [c.name for c in kept for _ in range(IMAGES_PER_CLASS)],
        {c.name: c.script for c in kept},
    )


def class_name(script: str, char: str) -> str:
    """Readable and safe as a file name: `Greek small alpha`, `Braille dots-12`."""
    words = unicodedata.name(char).lower().replace("old italic", "").split()
    noise = {*script.lower().split(), "letter", "syllabics", "pattern"}
    return " ".join([script, *(w for w in words if w not in noise)])


def _font_coverage() -> dict[Path, frozenset[str]]:
    """The characters every usable font holds."""
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


def _draw_class(script: str, char: str, coverage: dict[Path, frozenset[str]]) -> _Candidate | None:
    """All pictures of one character, or None where a font has nothing to show for it."""
    fonts = [path for path, chars in coverage.items() if char in chars]
    rng = np.random.default_rng((VERSION, ord(char)))
    turns = rng.permutation(np.arange(IMAGES_PER_CLASS) % len(fonts))  # every font equally often
    pictures = [_draw(char, fonts[turn], rng) for turn in turns]
    if any(p is None for p in pictures):
        return None
    upright = [_draw_upright(char, str(font)) for font in fonts]
    return _Candidate(
        class_name(script, char),
        script,
        np.stack([p for p in pictures if p is not None]),
        np.stack([_shape(p) for p in upright if p is not None]),
    )


def _draw(char: str, font: Path, rng: np.random.Generator) -> np.ndarray | None:
    upright = _draw_upright(char, str(font))
    if upright is None:
        return None
    angle = np.deg2rad(rng.uniform(-ROTATION, ROTATION))
    shear = np.array([[1, rng.uniform(-SHEAR, SHEAR)], [0, 1]])
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    backwards = np.linalg.inv(rng.uniform(*SCALE) * rotation @ shear)  # Pillow asks where an output pixel comes from
    centre = np.full(2, _CANVAS / 2)
    offset = centre - backwards @ centre
    matrix = (*backwards[0], offset[0], *backwards[1], offset[1])
    moved = upright.transform((_CANVAS, _CANVAS), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(moved.reduce(2))


@lru_cache(maxsize=64)
def _draw_upright(char: str, font: str) -> Image.Image | None:
    """The character, white on black, its longer side `_INK`, in the middle of the canvas."""
    left, top, right, bottom = _font(font, 100).getbbox(char)
    longer = max(right - left, bottom - top)
    if longer <= 0:
        return None
    sized = _font(font, round(100 * _INK / longer))
    left, top, right, bottom = sized.getbbox(char)
    picture = Image.new("L", (_CANVAS, _CANVAS))
    corner = ((_CANVAS - right - left) / 2, (_CANVAS - bottom - top) / 2)
    ImageDraw.Draw(picture).text(corner, char, fill=255, font=sized)
    return picture if picture.getbbox() else None


def _shape(upright: Image.Image) -> np.ndarray:
    """The character stretched to a square, so that a wide and a narrow K are the same shape; a bar stays a bar."""
    left, top, right, bottom = upright.getbbox() or (0, 0, _CANVAS, _CANVAS)
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    half = max(right - left, bottom - top) / 2
    half_x, half_y = max((right - left) / 2, half / 3), max((bottom - top) / 2, half / 3)
    box = (middle_x - half_x, middle_y - half_y, middle_x + half_x, middle_y + half_y)
    return np.asarray(upright.resize((16, 16), Image.Resampling.BOX, box), dtype=np.float32).reshape(-1)


@cache
def _font(path: str, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine: one character, one glyph, whatever text shaping libraries a machine has.
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def _without_look_alikes(candidates: list[_Candidate]) -> list[_Candidate]:
    """Walk through the scripts in turns; keep a character that is unlike every one kept so far."""
    alike = _cosines(np.stack([c.pictures.mean(axis=0).reshape(-1) for c in candidates])) > LOOK_ALIKE_MEAN
    starts = np.cumsum([0, *(len(c.shapes) for c in candidates[:-1])])
    same_shape = _cosines(np.concatenate([c.shapes for c in candidates])) > LOOK_ALIKE_UPRIGHT
    alike |= np.logical_or.reduceat(np.logical_or.reduceat(same_shape, starts, axis=0), starts, axis=1)
    turn = [sum(other.script == c.script for other in candidates[:i]) for i, c in enumerate(candidates)]
    kept: list[int] = []
    room = dict.fromkeys(SCRIPTS, CLASSES_PER_SCRIPT)
    for i in np.argsort(turn, kind="stable"):  # the first of every script, then the second of every script, ...
        script = candidates[i].script
        if room[script] and not alike[i, kept].any():
            kept.append(i)
            room[script] -= 1
    return [candidates[i] for i in sorted(kept, key=lambda i: candidates[i].name)]


def _cosines(rows: np.ndarray) -> np.ndarray:
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T
