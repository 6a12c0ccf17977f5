"""Small images enlarged in one call: the same views as the banded products, and only where nothing shrinks."""

import numpy as np
import pytest
import torch

from oodml.data.augment import (
    centre_crop,
    enlarges,
    random_resized_crop,
    squeezed_random_crop,
    view_each,
    view_enlarged,
    view_padded,
)

SIZES = [(20, 30), (32, 32), (27, 18), (31, 5)]


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in SIZES]
    padded = torch.zeros(len(SIZES), 32, 32, 3, dtype=torch.uint8)
    for slot, image in zip(padded, images, strict=True):
        slot[: image.shape[0], : image.shape[1]] = torch.from_numpy(image)
    heights, widths = (torch.tensor(side) for side in zip(*SIZES, strict=True))
    return images, padded, heights, widths


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["resized crop", "squeezed crop", "centre"])
def test_the_views_are_those_of_the_banded_products(batch, kind, seed):
    images, padded, heights, widths = batch
    generator = torch.Generator().manual_seed(seed)
    views = {
        "resized crop": lambda: random_resized_crop(heights, widths, 32, (0.3, 1.0), generator=generator),
        "squeezed crop": lambda: squeezed_random_crop(heights, widths, 40, 32, generator=generator),
        "centre": lambda: centre_crop(heights, widths, 33, 32),
    }[kind]()
    assert enlarges(views)
    fast = view_enlarged(padded, views, 32)
    assert fast.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fast, view_padded(padded, views, 32), atol=2e-5, rtol=0)
    # The path for large images works in whole grey levels.
    torch.testing.assert_close(fast, view_each(images, views, 32), atol=1.01 / 255, rtol=0)


def test_a_view_that_shrinks_is_noticed(batch):
    _, _, heights, widths = batch
    assert not enlarges(squeezed_random_crop(heights, widths, 30, 16))
