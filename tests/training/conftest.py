"""A dataset that trains in a second: coloured patterns, one per class, with noise."""

import contextlib
import json

import numpy as np
import pytest

from oodml.config import RunConfig
from oodml.data import ArraySource, Transforms, build_dataset, register_dataset
from oodml.training import loop

CLASSES, IMAGES, SIDE = 16, 8, 16


def draw_patterns(classes=CLASSES, images=IMAGES, side=SIDE, seed=0):
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (classes, 1, side // 4, side // 4, 3))
    pattern = np.repeat(np.repeat(coarse, 4, axis=2), 4, axis=3)
    noisy = pattern + rng.normal(0, 70, (classes, images, side, side, 3))
    pixels = noisy.clip(0, 255).astype(np.uint8).reshape(-1, side, side, 3)
    names = [f"class-{i // images:02d}" for i in range(len(pixels))]
    transforms = Transforms(size=side, short_side=side, crop_scale=(0.6, 1.0), flip=0.5)
    source = ArraySource(pixels, [f"{name}/{i}.png" for i, name in enumerate(names)])
    return build_dataset("patterns", source, names, transforms=transforms)


register_dataset("patterns", draw_patterns, replace=True, summary="Coloured patterns for the tests.")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OODML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def settings(tmp_path):
    """Settings of a short run, with anything replaced: `settings(steps=4)`."""

    def make(**replaced):
        values = {
            "dataset": "patterns",
            "method": "margin",
            "embedding_dim": 8,
            "steps": 12,
            "batch_size": 16,
            "samples_per_class": 4,
            "metrics": ("recall@1", "map@r"),
            "quiet": True,
            "device": "cpu",
            "out": str(tmp_path / "run"),
        }
        return RunConfig(**{**values, **replaced})

    return make


@pytest.fixture
def killed_after(monkeypatch):
    """`with killed_after(5):` the loop dies, as if killed, before it starts its sixth step."""

    @contextlib.contextmanager
    def kill(steps):
        real, count = loop.set_learning_rates, 0

        def die(*args):
            nonlocal count
            if count == steps:
                raise RuntimeError("killed")
            count += 1
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "set_learning_rates", die)
            yield

    return kill


@pytest.fixture
def facts():
    """What two equal runs must agree on to the last bit: result.json and the history, times left out."""
    times = {"seconds", "train_seconds", "images_per_second", "git_commit", "config"}

    def read(result):
        data = json.loads((result.path / "result.json").read_text())
        rows = [{k: v for k, v in row.items() if k not in times} for row in result.history]
        return {key: value for key, value in data.items() if key not in times}, rows

    return read
