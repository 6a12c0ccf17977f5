from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from oodml import OodmlError, load_dataset
from oodml.data import ArraySource, FileSource, Transforms, build_dataset, decode, load_images
from oodml.data import cache as cache_module
from oodml.data.augment import centre_crop, view_padded

SMALL = Transforms(size=16, short_side=20)


def load(root: Path, **options):
    options = {"transforms": SMALL, "quiet": True, "workers": 1, **options}
    return load_images(load_dataset("folder", root=root), **options)


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in cache.rglob("*") if p.name.endswith(".part")]


def test_images_are_shrunk_once_and_kept_exactly(birds: Path, cache: Path):
    images = load(birds)
    ds = load_dataset("folder", root=birds)
    assert len(images) == len(ds)
    for i in range(len(ds)):
        expected = np.asarray(decode.shrink(ds.image(i), 20))
        assert np.array_equal(images.pixels(i), expected)
        assert min(images.pixels(i).shape[:2]) == 20


def test_a_second_load_reads_no_image(birds: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    before = load(birds).eval_view(range(18))
    monkeypatch.setattr(cache_module, "decode_all", lambda *a: pytest.fail("decoded again"))
    assert torch.equal(load(birds).eval_view(range(18)), before)


def test_a_small_image_is_kept_and_enlarged_only_in_the_view(tmp_path: Path, cache: Path, image):
    (tmp_path / "d" / "a").mkdir(parents=True)
    for i in range(2):
        image(i, 10, 12).save(tmp_path / "d" / "a" / f"{i}.png")
    images = load(tmp_path / "d")
    assert images.pixels(0).shape == (12, 10, 3)
    assert images.eval_view([0]).shape == (1, 3, 16, 16)


@pytest.mark.parametrize("workers", [2, 3])
def test_a_pool_of_processes_makes_the_same_cache(birds: Path, tmp_path: Path, workers: int, monkeypatch):
    monkeypatch.setattr(decode, "_BLOCK", 2)
    made = []
    for n in (1, workers):
        monkeypatch.setenv("OODML_CACHE", str(tmp_path / f"cache{n}"))
        made.append(load(birds, workers=n).eval_view(range(18)))
    assert torch.equal(*made)


def test_the_cache_follows_the_source(birds: Path, cache: Path):
    before = load(birds).eval_view([0])
    Image.new("RGB", (33, 33), "red").save(birds / "crow" / "0.png")
    after = load(birds).eval_view([0])
    assert not torch.equal(before, after) and after[0, 0].min() == 1


def test_exif_orientation_is_honoured(tmp_path: Path, cache: Path):
    (tmp_path / "d" / "a").mkdir(parents=True)
    upright = Image.new("RGB", (20, 40), "black")
    upright.paste("white", (0, 0, 20, 20))  # white above black
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    upright.rotate(90, expand=True).save(tmp_path / "d" / "a" / "x.jpg", exif=exif, quality=95)
    upright.save(tmp_path / "d" / "a" / "y.png")
    images = load(tmp_path / "d")
    assert images.pixels(0).shape == (40, 20, 3)
    assert images.pixels(0)[5, 10].mean() > 240 and images.pixels(0)[35, 10].mean() < 15
    turned = load_dataset("folder", root=tmp_path / "d").image(0)
    assert turned.size == (20, 40) and turned.getpixel((10, 5))[0] > 240


def test_grey_palette_transparent_and_deep_images_become_rgb(tmp_path: Path, cache: Path):
    folder = tmp_path / "d" / "a"
    folder.mkdir(parents=True)
    Image.new("L", (20, 20), 100).save(folder / "0.png")
    Image.new("RGB", (20, 20), (10, 200, 30)).quantize(4).save(folder / "1.png")
    Image.new("RGBA", (20, 20), (255, 0, 0, 0)).save(folder / "2.png")
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(folder / "3.png")
    Image.new("CMYK", (20, 20)).save(folder / "4.jpg")
    images = load(tmp_path / "d")
    assert [images.pixels(i)[10, 10].tolist() for i in range(3)] == [[100] * 3, [10, 200, 30], [255] * 3]
    assert images.pixels(3)[10, 10].tolist() == [40_000 >> 8] * 3
    assert images.pixels(4)[10, 10].min() > 250


def break_some(birds: Path) -> None:
    whole = (birds / "jay" / "1.jpg").read_bytes()
    (birds / "jay" / "1.jpg").write_bytes(whole[:-60])
    (birds / "wren" / "0.png").write_text("not an image")
    (birds / "crow" / "2.webp").write_bytes(b"")


@pytest.mark.parametrize("workers", [1, 2])
def test_broken_images_are_named_and_left_out(birds: Path, cache: Path, workers: int):
    break_some(birds)
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match=r"3 of 18 images.*crow/2\.webp.*jay/1\.jpg.*wren/0\.png") as caught:
            images = load(birds, workers=workers)
        assert "truncated" in str(caught[0].message)
    assert len(images) == len(images.dataset) == 15
    assert np.bincount(images.dataset.labels).tolist() == [2, 4, 4, 5]
    whole = load_dataset("folder", root=birds)
    for i in range(15):
        original = whole.image(images.dataset.parent[1][i])
        assert np.array_equal(images.pixels(i), np.asarray(decode.shrink(original, 20)))
    with pytest.raises(OodmlError, match=r"jay/1\.jpg.*Replace or remove them"):
        load(birds, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is left is whole
        again = load_images(images.dataset, transforms=SMALL, quiet=True)
    assert torch.equal(again.eval_view(range(15)), images.eval_view(range(15)))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "fault",
    [MemoryError(), *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.EMFILE, errno.ESTALE))],
    ids=["memory", "EIO", "EMFILE", "ESTALE"],
)
def test_a_passing_fault_is_one_sentence_and_condemns_no_image(birds, cache: Path, monkeypatch, fault, workers: int):
    real = FileSource.image

    def image(self, i: int, shrink_to: int | None = None):
        if self.name(i) == "jay/1.jpg":
            raise fault
        return real(self, i, shrink_to)

    with monkeypatch.context() as patched:
        patched.setattr(FileSource, "image", image)
        with pytest.raises(OodmlError, match=r"^The image jay/1\.jpg could not be read \([^)]+\)"):
            load(birds, workers=workers)
    assert leftovers(cache) == [] and not list(cache.rglob("pixels.bin"))
    assert len(load(birds)) == 18


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EISDIR, errno.EINVAL])
def test_what_the_system_says_of_the_file_itself_is_the_files_fault(birds, cache: Path, monkeypatch, number: int):
    def image(self, i: int, shrink_to: int | None = None):
        if self.name(i) == "jay/1.jpg":
            raise OSError(number, os.strerror(number))
        return Image.new("RGB", (30, 30))

    monkeypatch.setattr(FileSource, "image", image)
    with pytest.warns(UserWarning, match=r"1 of 18 images.*jay/1\.jpg"):
        assert len(load(birds)) == 17


def test_nothing_readable_is_an_error_and_leaves_nothing(tmp_path: Path, cache: Path):
    (tmp_path / "d" / "a").mkdir(parents=True)
    for i in range(3):
        (tmp_path / "d" / "a" / f"{i}.png").write_text("x")
    with pytest.raises(OodmlError, match=r"None of the 3 images.*a/0\.png"):
        load(tmp_path / "d")
    assert leftovers(cache) == [] and not list(cache.rglob("meta.json"))


def test_a_subset_reads_the_cache_of_the_whole(birds: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    images = load(birds)
    monkeypatch.setattr(cache_module, "decode_all", lambda *a: pytest.fail("decoded again"))
    part = images.dataset.subset([17, 3, 3, 8])
    assert torch.equal(
        load_images(part, transforms=SMALL).eval_view(range(4)), images.eval_view(np.array([17, 3, 3, 8]))
    )


def test_a_subset_alone_decodes_only_its_own(birds: Path, cache: Path):
    ds = load_dataset("folder", root=birds).sample(1)
    images = load_images(ds, transforms=SMALL, quiet=True)
    assert len(images) == 4
    assert np.array_equal(images.pixels(2), np.asarray(decode.shrink(ds.image(2), 20)))


@pytest.mark.parametrize("part", ["pixels.bin", "index.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "flipped"])
def test_a_damaged_cache_is_noticed_and_built_again(birds: Path, cache: Path, part: str, damage: str):
    expected = load(birds).eval_view(range(18))
    (file,) = cache.rglob(part)
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        if part == "pixels.bin":
            content[100] ^= 255
            file.write_bytes(content)
            assert cache_module.read_cache(file.parent, check_pixels=True) is None  # `oodml datasets --check` finds it
            return
        content[len(content) // 2] ^= 255
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[:-10] if damage == "cut" else content if damage == "flipped" else b"")
    with pytest.warns(UserWarning, match="is damaged; it is built again"):
        images = load(birds)
    assert torch.equal(images.eval_view(range(18)), expected)
    assert cache_module.read_cache(file.parent, check_pixels=True) is not None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(birds: Path, cache: Path, monkeypatch, workers: int):
    monkeypatch.setattr(decode, "_BLOCK", 4)
    real, room = os.pwrite, 8_000

    def pwrite(handle: int, content: memoryview, offset: int) -> int:
        """As a disk of 8,000 bytes would: it takes what fits, and then nothing."""
        if offset >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, content[: room - offset], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OodmlError, match=r"The disk is full: free some space.*Nothing half-written was left"):
        load(birds, workers=workers)
    assert leftovers(cache) == [] and not list(cache.rglob("pixels.bin"))
    monkeypatch.undo()
    monkeypatch.setenv("OODML_CACHE", str(cache))
    assert len(load(birds)) == 18


def test_writes_that_the_system_splits_are_completed(birds: Path, cache: Path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, content, offset: real(handle, content[:777], offset))
    images = load(birds)
    monkeypatch.undo()
    ds = images.dataset
    assert all(np.array_equal(images.pixels(i), np.asarray(decode.shrink(ds.image(i), 20))) for i in range(18))


def test_a_cache_folder_that_cannot_be_written_is_one_sentence(birds: Path, cache: Path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write anywhere, so permissions alone would prove nothing
    with pytest.raises(OodmlError, match="The folder cannot be written: change its permissions, or point OODML_CACHE"):
        load(birds)


def test_a_finished_cache_serves_from_a_read_only_folder(birds: Path, cache: Path, monkeypatch):
    load(birds)
    monkeypatch.setattr(cache_module, "exclusive", lambda path: pytest.fail("asked for a lock"))
    assert len(load(birds)) == 18


def test_a_killed_worker_is_one_sentence(birds: Path, cache: Path, monkeypatch):
    monkeypatch.setattr(decode, "_BLOCK", 2)
    parent = os.getpid()
    real = decode._Writer.decode

    def die(self, block):
        if os.getpid() != parent and 4 in block:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, block)

    monkeypatch.setattr(decode._Writer, "decode", die)
    with pytest.raises(OodmlError, match="was killed, probably for lack of memory"):
        load(birds, workers=2)
    assert leftovers(cache) == []


SCRIPT = """
import sys, warnings
from oodml.data import Transforms, load_dataset, load_images, cache
real = cache._build
def build(*arguments):
    print("built", flush=True)
    real(*arguments)
cache._build = build
ds = load_dataset("folder", root=sys.argv[1])
images = load_images(ds, transforms=Transforms(size=16, short_side=20), quiet=True)
print(float(images.eval_view(range(len(images))).sum()))
"""


@pytest.mark.long
def test_of_processes_that_start_together_one_builds(birds: Path, cache: Path):
    runs = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(birds)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [run.communicate(timeout=120)[0].split() for run in runs]
    assert sorted(len(a) for a in answers) == [1, 1, 2]
    assert len({a[-1] for a in answers}) == 1


@pytest.mark.long
def test_killing_a_build_at_any_moment_leaves_a_usable_cache(tmp_path: Path, cache: Path, image):
    for c in range(6):
        (tmp_path / "d" / str(c)).mkdir(parents=True)
        for i in range(60):
            image(60 * c + i, 300, 200).save(tmp_path / "d" / str(c) / f"{i}.png")
    rng = np.random.default_rng(0)
    for _ in range(8):
        run = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None and run.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.6)))
        run.kill()
        run.communicate()
    images = load(tmp_path / "d")
    ds = images.dataset
    assert len(images) == 360
    assert all(np.array_equal(images.pixels(i), np.asarray(decode.shrink(ds.image(i), 20))) for i in range(0, 360, 37))


def test_batches_gathered_for_a_gpu_equal_those_of_the_cpu(birds: Path, cache: Path):
    images = load(birds)
    rows = np.array([17, 0, 4, 4, 11])
    batch = images._padded(rows)
    for image, i in zip(batch, rows, strict=True):
        height, width = images.pixels(i).shape[:2]
        assert np.array_equal(image[:height, :width].numpy(), images.pixels(i))
    views = centre_crop(*images._extent(rows), 20, 16)
    assert (view_padded(batch, views, 16) - images.eval_view(rows)).abs().max() < 1e-6


@pytest.mark.parametrize("widths", [(30,), (30, 31)], ids=["one size", "two sizes"])
def test_gathered_batches_hold_the_images_of_a_subset_too(tmp_path: Path, cache: Path, image, widths):
    for i in range(12):
        (tmp_path / "d" / str(i % 3)).mkdir(parents=True, exist_ok=True)
        image(i, widths[i % len(widths)], 20).save(tmp_path / "d" / str(i % 3) / f"{i}.png")
    whole = load(tmp_path / "d").dataset
    for ds in (whole, whole.subset(np.array([1, 2, 7, 10]))):
        images = load_images(ds, transforms=SMALL, quiet=True, workers=1)
        assert (images._common_size is not None) == (len(widths) == 1)
        rows = np.array([3, 0, 3, 1])
        for shown, i in zip(images._padded(rows), rows, strict=True):
            pixels = images.pixels(i)
            assert np.array_equal(shown[: pixels.shape[0], : pixels.shape[1]].numpy(), pixels)
            assert np.array_equal(pixels, np.asarray(decode.shrink(ds.image(i), 20)))


def test_evaluation_view_is_resize_and_centre_crop_of_the_image(birds: Path, cache: Path):
    images = load(birds)
    for i in (0, 9):
        small = decode.shrink(images.dataset.image(i), 20)
        left, top = round((small.width - 16) / 2), round((small.height - 16) / 2)
        expected = np.asarray(small.crop((left, top, left + 16, top + 16))).transpose(2, 0, 1) / 255
        assert np.abs(images.eval_view([i])[0].numpy() - expected).max() < 1e-6
    assert images.eval_view([0], size=32).shape == (1, 3, 32, 32)


def test_training_views_are_seeded_fresh_and_obey_the_transforms(birds: Path, cache: Path):
    images = load(birds)

    def views(seed: int, **options):
        return images.train_view(range(18), torch.Generator().manual_seed(seed), **options)

    assert torch.equal(views(0), views(0)) and not torch.equal(views(0), views(1))
    assert views(0).shape == (18, 3, 16, 16) and views(0).min() >= 0 and views(0).max() <= 1
    assert not torch.equal(views(0), views(0, crop_scale=(0.9, 1.0)))
    sharing = Transforms(size=16, short_side=20, train="crop", flip=0)
    squeezed = load(birds, transforms=sharing)
    assert squeezed.train_view(range(18), torch.Generator().manual_seed(0)).shape == (18, 3, 16, 16)
    with pytest.raises(OodmlError, match="between 0 and 17"):
        images.train_view([18])


def test_images_of_an_array_go_the_same_way(cache: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 20), dtype=np.uint8)
    ds = build_dataset("grey", ArraySource(pixels, list("abcdef")), list("xxyyzz"), transforms=SMALL)
    images = load_images(ds, quiet=True)
    assert np.array_equal(images.pixels(4)[..., 1], pixels[4])
    (meta,) = cache.rglob("meta.json")
    assert json.loads(meta.read_text())["fingerprint"] == ds.fingerprint


@pytest.mark.real
def test_real_birds_are_decoded_and_viewed(real_data: Path, cache: Path):
    ds = load_dataset("cub200", root=real_data).sample(1)
    images = load_images(ds, quiet=True)
    assert len(images) == 200 and images.heights.min() >= 100
    view = images.train_view(range(32), torch.Generator().manual_seed(0))
    assert view.shape == (32, 3, 224, 224) and 0.2 < view.mean() < 0.8
    assert images.eval_view(range(8)).shape == (8, 3, 224, 224)
