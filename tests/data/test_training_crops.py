"""Training views are cut from (nearly) the original image, evaluation views stay what they are.

The oracle reads the original with PIL and knows nothing of a cache: crop, resize, cut the window, mirror.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from oodml import OodmlError, RunConfig, load_dataset
from oodml.data import Images, Transforms, load_images
from oodml.data import cache as cache_module
from oodml.data import images as images_module
from oodml.data.augment import Views, random_resized_crop, squeezed_random_crop
from oodml.models import features
from oodml.training.data import open_images
from oodml.training.distributed import Processes
from oodml.training.job import prepare_images

pytestmark = pytest.mark.filterwarnings("ignore:.*1 class has a single image")

TO_512 = Transforms(cache_side=512)
VIEWS = 24


def textured(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise of every scale from 1 to 64 pixels."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cell in (1, 2, 4, 8, 16, 32, 64):
        noise = rng.integers(0, 256, (height // cell + 1, width // cell + 1, 3), dtype=np.uint8)
        total += np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)) - 127.0
    return Image.fromarray((127 + 0.4 * total).clip(0, 255).astype(np.uint8))


def write(root: Path, *sizes: tuple[int, int], kind: str = "png") -> Path:
    """A folder of one class with a textured image of each size (width, height)."""
    (root / "a").mkdir(parents=True)
    for i, size in enumerate(sizes):
        textured(*size, seed=i).save(root / "a" / f"{i}.{kind}", **({"quality": 95} if kind == "jpg" else {}))
    return root


def load(root: Path, transforms: Transforms | None = None) -> Images:
    return load_images(load_dataset("folder", root=root), transforms=transforms, quiet=True, workers=1)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def training_views(images: Images, position: int = 0, count: int = VIEWS) -> Tensor:
    return images.train_view([position] * count, seeded())


def by_pil(original: Image.Image, extent: tuple[int, int], views: Views, size: int = 224) -> Tensor:
    """The views (their boxes are those of an image of `extent`: width, height) cut from the original."""
    across, down = original.width / extent[0], original.height / extent[1]
    made = []
    for top, left, height, width, rows, columns, y, x, flip in torch.stack([f.long() for f in views], 1).tolist():
        x0, y0, x1, y1 = left * across, top * down, (left + width) * across, (top + height) * down
        inside = original.crop((int(x0), int(y0), math.ceil(x1), math.ceil(y1)))  # PIL looks beyond the edges of `box`
        box = (x0 - int(x0), y0 - int(y0), x1 - int(x0), y1 - int(y0))
        shown = inside.resize((columns, rows), Image.Resampling.BILINEAR, box=box)
        shown = shown.crop((x, y, x + size, y + size))
        made.append(np.asarray(shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else shown))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2) / 255


def drawn(kind: str, extent: tuple[int, int]) -> Views:
    widths, heights = (torch.full((VIEWS,), side) for side in extent)
    if kind == "crop":
        return squeezed_random_crop(heights, widths, 256, 224, generator=seeded())
    return random_resized_crop(heights, widths, 224, generator=seeded())


@pytest.mark.parametrize("kind", ["resized-crop", "crop"])
@pytest.mark.parametrize("size", [(480, 400), (512, 768)])
def test_views_of_an_image_up_to_the_side_are_those_of_the_original(tmp_path: Path, cache: Path, kind, size):
    """`crop`: the original to 256 × 256, whatever its ratio, then a window of 224, as Sharing Matters prints it."""
    root = write(tmp_path / "d", size)
    expected = by_pil(textured(*size), size, drawn(kind, size))
    made = training_views(load(root, Transforms(cache_side=512, train=kind)))
    assert (made - expected).abs().max() < 1.01 / 255  # a grey level: the two round between rows and columns
    shrunk_first = training_views(load(root, Transforms(train=kind)))
    assert (shrunk_first - expected).abs().mean() > 2 / 255


@pytest.mark.parametrize(
    ("kind", "far", "near"), [("resized-crop", 8.5, 3.5), ("crop", 2.3, 1.8)], ids=["resized-crop", "crop"]
)
def test_views_of_a_larger_image_are_nearer_to_those_of_the_original(tmp_path: Path, cache: Path, kind, far, near):
    """Mean distance in grey levels on 1200 × 900 pixels of the finest texture; with a side of 900 there is none."""
    root, original = write(tmp_path / "d", (1200, 900)), textured(1200, 900)

    def distance(side: int | None, extent: tuple[int, int]) -> float:
        made = training_views(load(root, Transforms(cache_side=side, train=kind)))
        return float((made - by_pil(original, extent, drawn(kind, extent))).abs().mean() * 255)

    assert distance(None, (341, 256)) > far
    assert distance(512, (682, 512)) < near
    assert distance(900, (1200, 900)) < 0.02


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_evaluation_views_are_the_same_numbers(tmp_path: Path, cache: Path, kind: str):
    sizes = [(1200, 900), (900, 1200), (480, 400), (256, 300), (200, 150), (2400, 1400)]
    root = write(tmp_path / "d", *sizes, kind=kind)
    positions = range(len(sizes))
    larger, plain = load(root, TO_512), load(root)
    for side in (None, 224, 96, 300):
        assert torch.equal(larger.eval_view(positions, side), plain.eval_view(positions, side))
    for i in range(4):  # short side to 256, centre 224, by PIL from the original
        original = larger.dataset.image(i)
        scale = 256 / min(original.size)
        small = original.resize(tuple(int(scale * side) for side in original.size), Image.Resampling.BILINEAR)
        left, top = (round((side - 224) / 2) for side in small.size)
        expected = np.asarray(small.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1).astype(np.float32)
        assert np.array_equal((larger.eval_view([i])[0] * 255).round().numpy(), expected)


@pytest.mark.parametrize("made_before", [False, True], ids=["", "by a cache that does not say it"])
def test_images_no_larger_than_the_evaluation_side_give_todays_views(tmp_path: Path, cache: Path, made_before: bool):
    root = write(tmp_path / "d", (256, 300), (200, 150), (500, 256), (224, 224))
    plain = load(root)
    if made_before:
        (meta,) = cache.rglob("meta.json")
        meta.write_text(json.dumps({k: v for k, v in json.loads(meta.read_text()).items() if k != "shrunk"}))
    images = load(root, TO_512)
    for i in range(4):
        assert torch.equal(training_views(images, i), training_views(plain, i))
    assert images._larger is None  # not twice in memory
    assert len(list(cache.rglob("pixels.bin"))) == 1 + made_before  # nor on the disk


def test_small_images_among_large_ones_are_not_enlarged(tmp_path: Path, cache: Path):
    root = write(tmp_path / "d", (200, 150), (1200, 900), (480, 400))
    images = load(root, TO_512)
    assert images._larger is not None
    shapes = [images._larger.pixels(i).shape[:2] for i in range(3)]
    assert shapes == [(150, 200), (512, 682), (400, 480)]
    assert torch.equal(training_views(images, 0), training_views(load(root), 0))


def test_without_the_setting_nothing_changes(tmp_path: Path, cache: Path):
    images = load(write(tmp_path / "d", (1200, 900)))
    assert images._larger is None and len(list(cache.rglob("pixels.bin"))) == 1
    assert images.dataset.notes == load_dataset("folder", root=tmp_path / "d").notes


def test_the_side_is_lowered_until_the_images_fit_the_bound(tmp_path: Path, cache: Path, monkeypatch):
    sizes = [(1200, 900), (900, 1300), (1000, 1000), (200, 150)]
    root = write(tmp_path / "d", *sizes)
    whole = sum(3 * 512 * 512 * max(s) / min(s) for s in sizes[:3])
    monkeypatch.setattr(images_module, "TRAINING_BYTES", int(0.6 * whole))
    with pytest.warns(UserWarning, match=r"short side of (3\d\d) pixels, not 512: at 512 these 4 images"):
        images = load(root, TO_512)
    assert images.dataset.notes[-1].startswith("Training views of 'folder' are cut from")
    assert images._larger is not None
    side = int(images._larger.heights[0])
    assert 0.95 * 0.6**0.5 * 512 < side <= 0.6**0.5 * 512
    stored = [file.stat().st_size for file in cache.rglob("pixels.bin")]
    assert max(stored) <= 0.6 * whole and len(stored) == 2
    assert images._larger.pixels(3).shape[:2] == (150, 200)
    with pytest.warns(UserWarning, match=f"short side of {side} pixels"):  # the same on every machine, and again
        assert torch.equal(training_views(load(root, TO_512)), training_views(images))


def test_where_even_the_evaluation_side_is_too_much_there_is_no_second_cache(tmp_path, cache, monkeypatch):
    root = write(tmp_path / "d", (1200, 900))
    monkeypatch.setattr(images_module, "TRAINING_BYTES", 1000)
    with pytest.warns(UserWarning, match="short side of 256 pixels, not 512"):
        images = load(root, TO_512)
    assert images._larger is None
    assert torch.equal(training_views(images), training_views(load(root)))


def test_the_bound_lets_cub_and_cars_keep_512_and_lowers_sop():
    def side(count: int, long_side: int) -> int:
        shape = np.full(count, 256), np.full(count, long_side)
        cache = cache_module.PixelCache(np.zeros((0, 48), np.uint8), np.arange(count), np.zeros(count), *shape, [])
        return cache.side_within(images_module.TRAINING_BYTES, 256, 512)

    assert side(11_788, 384) == side(16_185, 384) == 512  # images of 3 : 2
    assert 256 < side(120_053, 341) < 400


def test_a_broken_image_is_left_out_of_both(tmp_path: Path, cache: Path):
    root = write(tmp_path / "d", (480, 400), (600, 450), (500, 420), kind="jpg")
    broken = root / "a" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:-3000])
    with pytest.warns(UserWarning, match="1 of 3 images"):
        images = load(root, TO_512)
    assert len(images) == 2
    expected = by_pil(images.dataset.image(1), (500, 420), drawn("resized-crop", (500, 420)))
    assert (training_views(images, 1) - expected).abs().max() < 1.01 / 255


def test_an_image_that_only_one_of_the_caches_holds_is_an_error(tmp_path: Path, cache: Path, monkeypatch):
    root = write(tmp_path / "d", (480, 400), (600, 450))
    real = images_module.open_or_build

    def build(ds, short_side, *options):
        found = real(ds, short_side, *options)
        return found.take(np.array([0]), set()) if short_side == 512 else found

    monkeypatch.setattr(images_module, "open_or_build", build)
    with pytest.raises(OodmlError, match=r"other images can be read at a short side of 512 pixels.*leave cache_side"):
        load(root, TO_512)


def test_a_subset_reads_the_larger_cache_of_the_whole(tmp_path: Path, cache: Path, monkeypatch):
    images = load(write(tmp_path / "d", (480, 400), (1200, 900), (700, 500)), TO_512)
    monkeypatch.setattr(cache_module, "decode_all", lambda *a: pytest.fail("decoded again"))
    part = load_images(images.dataset.subset([2, 1]), quiet=True)
    assert torch.equal(training_views(part, 1), training_views(images, 1))


def test_both_caches_share_the_memory_of_a_gpu(tmp_path: Path, cache: Path):
    images = load(write(tmp_path / "d", (1200, 900)), TO_512)
    files = sorted(cache.rglob("pixels.bin"), key=lambda file: file.stat().st_size)
    small, large = (file.stat().st_size for file in files)
    caches = [cache_module.read_cache(file.parent) for file in files]
    for limit, resident in [(small + large, (True, True)), (small + large - 1, (True, False)), (1, (False, False))]:
        found = Images(images.dataset, caches[0], torch.device("cpu"), caches[1], memory_limit=limit)
        assert (found.resident, found._larger.resident) == resident


def test_a_run_crops_at_the_side_of_its_settings(tmp_path: Path, cache: Path):
    root = write(tmp_path / "d", (480, 400))
    spec = {"name": "folder", "root": str(root)}
    expected = by_pil(textured(480, 400), (480, 400), drawn("resized-crop", (480, 400)))
    config = RunConfig(dataset=spec, cache_side=512, device="cpu", quiet=True)
    dataset = load_dataset(spec)
    for images in (
        prepare_images(config, dataset, Processes()),
        open_images(dataset, torch.device("cpu"), config, True),  # few-shot adaptation of that run
    ):
        assert (training_views(images) - expected).abs().max() < 1.01 / 255
    assert prepare_images(RunConfig(dataset=spec, device="cpu", quiet=True), dataset, Processes())._larger is None
    assert config.hash() != RunConfig(dataset=spec).hash() == RunConfig(dataset=spec, cache_side=None).hash()


def test_features_of_augmented_views_follow_a_side_that_is_given(tmp_path: Path, cache: Path):
    root = write(tmp_path / "d", (480, 400), (600, 450))
    config = RunConfig(dataset={"name": "folder", "root": str(root)}, train="head", cache_side=512, quiet=True)
    plain = load_dataset("folder", root=root)
    larger = prepare_images(config, plain, Processes()).dataset
    found, today = (features.extract_features(ds, "tiny", views=1, device="cpu", quiet=True) for ds in (larger, plain))
    assert np.array_equal(found[0], today[0]) and not np.allclose(found[1], today[1])
    stored = list((cache / "features").glob("*.safetensors"))
    assert len(stored) == 3  # one evaluation view for both


@pytest.mark.parametrize("side", [1, 255])
def test_a_side_below_that_of_evaluation_is_refused(side: int):
    with pytest.raises(OodmlError, match=rf"cache_side {side} is smaller than .* views, 256: take a larger one, or"):
        Transforms(cache_side=side)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Transforms(cache_side=256).override(train="crop", cache_side=None).cache_side == 256
