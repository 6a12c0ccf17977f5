from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from oodml import OodmlError
from oodml.data import Transforms
from oodml.data.augment import (
    Views,
    _boxes,
    centre_crop,
    random_resized_crop,
    squeezed_random_crop,
    view_each,
    view_padded,
)

GREY = 1 / 255


@pytest.fixture(scope="module")
def v2():
    from oodml.models.backbones.timm_models import ensure_torchvision

    ensure_torchvision()
    from torchvision.transforms.v2 import functional

    return functional


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    """Twelve images of different sizes, smooth with some noise."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(12):
        height, width = int(rng.integers(40, 140)), int(rng.integers(40, 140))
        wave = np.sin(np.arange(height)[:, None, None] / (3 + i) + np.arange(width)[None, :, None] / 7 + np.arange(3))
        made.append((127 + 90 * wave + rng.normal(0, 10, (height, width, 3))).clip(0, 255).astype(np.uint8))
    return made


def extent(images: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor([p.shape[axis] for p in images]) for axis in (0, 1))


def padded(images: list[np.ndarray]) -> Tensor:
    heights, widths = extent(images)
    batch = torch.full((len(images), int(heights.max()), int(widths.max()), 3), 77, dtype=torch.uint8)
    for target, p in zip(batch, images, strict=True):
        target[: p.shape[0], : p.shape[1]] = torch.from_numpy(p)
    return batch


def by_torchvision(v2, images: list[np.ndarray], views: Views, size: int, dtype: torch.dtype) -> Tensor:
    """One image at a time: crop, resize, cut the window, flip."""
    out = []
    for image, (top, left, height, width, rows, columns, y, x, flip) in zip(
        images, torch.stack([*views[:8], views.flip.long()], 1).tolist(), strict=True
    ):
        image = torch.from_numpy(image).permute(2, 0, 1)
        image = image if dtype == torch.uint8 else image.to(dtype)
        image = v2.crop(image, top, left, height, width)
        image = v2.resize(image, [rows, columns], antialias=True)
        image = v2.crop(image, y, x, size, size)
        out.append(v2.horizontal_flip(image) if flip else image)
    return torch.stack(out).double() / 255


def drawn(kind: str, heights: Tensor, widths: Tensor, seed: int) -> tuple[Views, int]:
    generator = torch.Generator().manual_seed(seed)
    if kind == "random-resized-crop":
        return random_resized_crop(heights, widths, 48, generator=generator), 48
    if kind == "centre-crop":
        return centre_crop(heights, widths, 64, 48), 48
    return squeezed_random_crop(heights, widths, 64, 57, generator=generator), 57


@pytest.mark.parametrize("kind", ["random-resized-crop", "centre-crop", "squeezed-crop"])
@pytest.mark.parametrize("seed", range(4))
def test_views_equal_torchvision_on_the_same_parameters(v2, images, kind: str, seed: int):
    views, size = drawn(kind, *extent(images), seed)
    made = view_padded(padded(images), views, size)
    assert made.shape == (12, 3, size, size) and made.dtype == torch.float32
    exact = by_torchvision(v2, images, views, size, torch.float64)
    assert (made - exact).abs().max() < 2e-5
    # float16 products, as on a GPU
    assert (view_padded(padded(images), views, size, torch.float16) - exact).abs().max() < 0.34 * GREY
    # the CPU's form is torchvision's on uint8, to the last bit
    each = view_each(images, views, size)
    assert each.is_contiguous() and each.dtype == torch.float32
    assert torch.equal((each * 255).round(), by_torchvision(v2, images, views, size, torch.uint8).mul(255).float())


def test_both_ways_of_flipping_and_of_shrinking_are_covered(images):
    heights, widths = extent(images)
    views, _ = drawn("random-resized-crop", heights, widths, 0)
    assert views.flip.any() and not views.flip.all()
    assert (views.height > 48).any() and (views.height < 48).any()


def torchvision_boxes(height: int, width: int, draws: np.ndarray, scale, ratio) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, its random numbers given: (4, tries)."""
    for area_draw, ratio_draw, top_draw, left_draw in draws.T:
        area = height * width * (scale[0] + area_draw * (scale[1] - scale[0]))
        aspect = math.exp(math.log(ratio[0]) + ratio_draw * (math.log(ratio[1]) - math.log(ratio[0])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(top_draw * (height - h + 1)), int(left_draw * (width - w + 1)), h, w
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.7, 1.0), (1.0, 1.0)])
def test_boxes_follow_torchvisions_algorithm(scale: tuple[float, float]):
    rng = np.random.default_rng(1)
    heights = torch.from_numpy(rng.integers(3, 400, 500))
    widths = torch.from_numpy(rng.integers(3, 400, 500))
    ratio = (3 / 4, 4 / 3)
    views = random_resized_crop(heights, widths, 224, scale, ratio, generator=torch.Generator().manual_seed(5))
    draws = torch.rand((5, 10, 500), dtype=torch.float64, generator=torch.Generator().manual_seed(5)).numpy()
    expected = [
        torchvision_boxes(int(h), int(w), draws[:4, :, i], scale, ratio)
        for i, (h, w) in enumerate(zip(heights, widths, strict=True))
    ]
    assert torch.stack(views[:4], 1).tolist() == [list(e) for e in expected]
    assert torch.equal(views.flip, torch.from_numpy(draws[4, 0] < 0.5))
    assert ((views.top >= 0) & (views.top + views.height <= heights)).all()
    assert ((views.left >= 0) & (views.left + views.width <= widths)).all()


def test_boxes_on_a_gpu_are_those_on_a_cpu():
    """The one formula, by torch's operations (a GPU's) and by NumPy's, very long images among them."""
    rng = np.random.default_rng(3)
    draws, sides = rng.random((5, 10, 400)), rng.integers(1, 300, (2, 400))
    found = _boxes(torch, torch.from_numpy(draws), torch.from_numpy(sides), (0.08, 1.0), (3 / 4, 4 / 3))
    assert np.array_equal(found.numpy(), _boxes(np, draws, sides, (0.08, 1.0), (3 / 4, 4 / 3)))


def test_crops_have_torchvisions_distribution(v2):
    """The same law, not only the same code: areas and ratios against the real get_params."""
    from torchvision.transforms import RandomResizedCrop

    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    image = torch.zeros(3, 120, 200)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(6000)])
    torch.random.set_rng_state(state)
    n = 20_000
    views = random_resized_crop(
        torch.full((n,), 120), torch.full((n,), 200), 32, generator=torch.Generator().manual_seed(1)
    )
    ours = torch.stack(views[:4], 1).numpy()
    for column in range(4):
        ours_quantiles, theirs_quantiles = (np.quantile(a[:, column], np.arange(0.1, 1, 0.1)) for a in (ours, theirs))
        assert np.abs(ours_quantiles - theirs_quantiles).max() <= 5


def test_centre_crop_has_torchvisions_sizes_and_offsets(v2):
    rng = np.random.default_rng(2)
    heights, widths = (torch.from_numpy(rng.integers(20, 500, 300)) for _ in range(2))
    views = centre_crop(heights, widths, 256, 224)
    for i in range(0, 300, 7):
        resized = v2.resize(torch.zeros(1, int(heights[i]), int(widths[i]), dtype=torch.uint8), [256])
        assert resized.shape[1:] == (views.rows[i], views.columns[i])
        marked = torch.arange(resized[0].numel()).view(1, *resized.shape[1:])
        first = int(v2.center_crop(marked, [224, 224])[0, 0, 0])
        assert divmod(first, resized.shape[2]) == (views.y[i], views.x[i])


def test_a_generator_repeats_its_views_and_leaves_the_global_one_alone():
    heights = widths = torch.full((50,), 100)
    before = torch.random.get_rng_state()
    one, two = (random_resized_crop(heights, widths, 32, generator=torch.Generator().manual_seed(9)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_scale": (0.5, 0.2)}, "crop_scale"),
        ({"crop_ratio": (2, 1)}, "crop_ratio"),
        ({"flip": 1.5}, "probability"),
        ({"size": 300}, "output size"),
        ({"train": "crops"}, "Did you mean 'crop'"),
    ],
)
def test_impossible_transforms_are_refused(options: dict, message: str):
    with pytest.raises(OodmlError, match=message):
        Transforms(**options)
