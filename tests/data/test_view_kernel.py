"""The GPU kernel against the banded products, which are checked against torchvision.

Runs on a GPU, or anywhere with Triton installed and TRITON_INTERPRET=1.
"""

import importlib.util
import os

import numpy as np
import pytest
import torch

from oodml.data.augment import centre_crop, random_resized_crop, squeezed_random_crop, view_padded

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not (torch.cuda.is_available() or INTERPRETED),
    reason="needs Triton and a GPU (or TRITON_INTERPRET=1)",
)

SIZES = [(40, 50), (33, 64), (64, 37), (20, 90)]
VIEWS = {
    "resized crop": (lambda h, w, g: random_resized_crop(h, w, 32, generator=g), 32),
    "centre": (lambda h, w, g: centre_crop(h, w, 36, 30), 30),
    "squeezed crop": (lambda h, w, g: squeezed_random_crop(h, w, 40, 32, generator=g), 32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_from_the_flat_store_equal_the_banded_products(name):
    from oodml.data._view_kernel import view_packed

    device = "cpu" if INTERPRETED else "cuda"
    rng = np.random.default_rng(0)
    padded = torch.zeros(len(SIZES), 64, 90, 3, dtype=torch.uint8)
    pitches = [3 * width + 5 for _, width in SIZES]
    starts = np.cumsum([0, *[h * p for (h, _), p in zip(SIZES, pitches, strict=True)]])
    flat = torch.zeros(int(starts[-1]), dtype=torch.uint8)
    for i, (height, width) in enumerate(SIZES):
        image = torch.from_numpy(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        padded[i, :height, :width] = image
        rows = flat[starts[i] : starts[i + 1]].view(height, pitches[i])
        rows[:, : 3 * width] = image.reshape(height, -1)
    heights, widths = (torch.tensor(side, device=device) for side in zip(*SIZES, strict=True))
    draw, size = VIEWS[name]
    views = draw(heights, widths, torch.Generator(device).manual_seed(1))
    fast = view_packed(
        flat.to(device), torch.tensor(starts[:-1], device=device), torch.tensor(pitches, device=device), views, size
    )
    slow = view_padded(padded.to(device), views, size, torch.float32)
    torch.testing.assert_close(fast, slow, atol=2e-5, rtol=0)
    assert fast.is_contiguous(memory_format=torch.channels_last)
