from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from oodml import OodmlError, load_dataset
from oodml.data.sets import glyphs as glyphs_set


def test_there_are_enough_classes_images_and_scripts(glyphs):
    assert len(glyphs.classes) >= 300 and len(set(glyphs.superclasses)) == 17
    assert np.bincount(glyphs.labels).min() >= 20
    assert glyphs.image_size == 32 and glyphs.image(0).size == (32, 32) and glyphs.image(0).mode == "RGB"
    assert glyphs.transforms.flip == 0
    per_script = [glyphs.superclasses.count(s) for s in set(glyphs.superclasses)]
    assert min(per_script) >= 8 and max(per_script) <= 24


def test_default_split_alternates_scripts(glyphs):
    script = dict(zip(glyphs.classes, glyphs.superclasses, strict=True))
    train, test = ({script[c] for c in side} for side in (glyphs.default_split.train, glyphs.default_split.test))
    scripts = sorted(set(glyphs.superclasses))
    assert train == set(scripts[::2]) and test == set(scripts[1::2])
    assert sorted(glyphs.default_split.train + glyphs.default_split.test) == glyphs.classes


def test_every_image_shows_something_and_no_two_classes_look_alike(glyphs):
    pixels = np.asarray(glyphs.source.pixels, dtype=np.float64)
    assert pixels.max(axis=(1, 2)).min() >= 128
    ink = pixels.mean(axis=(1, 2)) / 255
    assert ink.min() > 0.005 and ink.max() < 0.6
    edge = np.concatenate([pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], axis=1)
    assert (edge.max(axis=1) > 128).mean() < 0.02  # characters are whole
    means = np.stack([pixels[glyphs.labels == c].mean(axis=0).reshape(-1) for c in range(len(glyphs.classes))])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = means @ means.T
    np.fill_diagonal(cosines, 0)
    script = np.array(glyphs.superclasses)
    across = script[:, None] != script
    assert cosines[across].max() <= 0.93 and cosines.max() <= 0.96


def test_no_font_shows_its_box_for_missing_characters(glyphs):
    """The .notdef glyph of every font, drawn like a character, is none of the classes."""
    from PIL import Image

    coverage = glyphs_set._font_coverage()
    assert not any("LastResort" in p.stem or "NonUni" in p.stem or "Siz" in p.stem for p in coverage)
    for font in coverage:
        box = glyphs_set._draw_upright("\U000f1234", str(font))  # a private character that no font has
        if box is None:
            continue
        missing = np.asarray(box.reduce(2), dtype=np.float64).reshape(-1)
        first = np.asarray(glyphs.source.pixels[::24], dtype=np.float64).reshape(len(glyphs.classes), -1)
        cosine = first @ missing / np.linalg.norm(first, axis=1) / np.linalg.norm(missing)
        assert cosine.max() < 0.97
    assert isinstance(glyphs.image(0), Image.Image)


def test_raw_pixels_leave_something_to_learn(glyphs):
    """Nearest neighbours by pixels on the held-out scripts: far above chance, far below perfect."""
    rows = glyphs.indices_of(glyphs.default_split.test)
    pixels = np.asarray(glyphs.source.pixels[rows], dtype=np.float32).reshape(len(rows), -1)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    cosines = pixels @ pixels.T
    np.fill_diagonal(cosines, -1)
    recall = (glyphs.labels[rows][cosines.argmax(axis=1)] == glyphs.labels[rows]).mean()
    assert 0.55 < recall < 0.75


def test_names_are_readable_and_safe_as_file_names(glyphs):
    assert glyphs_set.class_name("Greek", "α") == "Greek small alpha"
    assert glyphs_set.class_name("Old Italic", "\U00010300") == "Old Italic a"
    assert len({c.lower() for c in glyphs.classes}) == len(glyphs.classes)
    assert all(c.replace(" ", "").replace("-", "").isalnum() and c.isascii() for c in glyphs.classes)


def test_drawing_is_deterministic_and_quick(glyphs):
    start = time.perf_counter()
    again = glyphs_set.draw_glyphs(quiet=True)
    assert time.perf_counter() - start < 20
    assert np.array_equal(again.pixels, glyphs.source.pixels)
    assert load_dataset("glyphs", quiet=True).fingerprint == glyphs.fingerprint


def test_a_damaged_cache_is_drawn_again(glyphs, cache: Path, monkeypatch: pytest.MonkeyPatch):
    small = glyphs_set.Glyphs(np.ones((4, 32, 32), np.uint8), ["Greek x", "Greek x", "Latin y", "Latin y"], {})
    small = glyphs_set.Glyphs(small.pixels, small.class_of_image, {"Greek x": "Greek", "Latin y": "Latin"})
    calls = []
    monkeypatch.setattr(glyphs_set, "draw_glyphs", lambda quiet: calls.append(1) or small)
    assert len(load_dataset("glyphs")) == 4 and len(load_dataset("glyphs")) == 4 and len(calls) == 1
    (pixels,) = cache.rglob("pixels.npy")
    content = bytearray(pixels.read_bytes())
    for damage in (content[:-1] + b"\x07", content[:200], b""):
        pixels.write_bytes(damage)
        assert len(load_dataset("glyphs")) == 4
    assert len(calls) == 4


def test_a_cache_folder_that_cannot_be_written_is_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch):
    cache.write_text("a file where the folder should be")
    with pytest.raises(OodmlError, match="Could not lock"):
        load_dataset("glyphs")
