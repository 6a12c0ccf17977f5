"""`Images`: the decoded images of a dataset, and batches of views of them on a device."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from oodml._errors import OodmlError
from oodml._machine import pick_device
from oodml.data.augment import (
    Views,
    centre_crop,
    enlarges,
    random_resized_crop,
    squeezed_random_crop,
    view_each,
    view_enlarged,
    view_padded,
)
from oodml.data.cache import PixelCache, open_or_build
from oodml.data.dataset import Dataset, Transforms
from oodml.data.decode import CHUNK_PIXELS, shrink
from oodml.data.sources import upright_rgb

TRAINING_BYTES = 48 * 2**30  # the largest cache of images for training views, where that is not the one of evaluation
SMALL = 64  # side in pixels up to which it is cheaper to enlarge a whole batch of images at once than one by one
_GPU_SHARE = 0.6  # of the free memory that images may take; the network needs the rest
_GPU_BATCH = 256  # views made at once: larger batches only need more memory


def load_images(
    ds: Dataset,
    device: str | torch.device = "cpu",
    short_side: int | None = None,
    strict: bool = False,
    workers: int | None = None,
    quiet: bool = False,
    transforms: Transforms | None = None,
) -> Images:
    """The images of `ds` on `device`. They are decoded once, into a cache, and then read from it.

    An image that cannot be read is left out and named in a warning (an error with `strict`); `Images.dataset` is the
    dataset without those, and all positions refer to it.

    short_side  images are shrunk to this short side; default: that of the transforms
    transforms  replaces the dataset's own
    workers     processes that decode; default: one per core

    Where the transforms' `cache_side` is larger, training views are cut from a second cache of that side. If it could
    take more than 48 GiB, its side is reduced, with a warning and a note in the dataset.
    """
    ds = ds if transforms is None else replace(ds, transforms=transforms)
    short_side = ds.transforms.short_side if short_side is None else short_side
    if short_side < 1:
        raise OodmlError(f"short_side must be at least 1 pixel, got {short_side}.")
    whole = ds
    cache = open_or_build(ds, short_side, workers, quiet)
    if cache.failed:
        shown = "; ".join(f"{f['name']} ({f['reason']})" for f in cache.failed[:5])
        more = f"; and {len(cache.failed) - 5} more" if len(cache.failed) > 5 else ""
        problem = f"{len(cache.failed)} of {len(ds)} images of {ds.name!r} cannot be read: {shown}{more}."
        if strict:
            raise OodmlError(f"{problem} Replace or remove them; training and features leave them out.")
        warnings.warn(f"{problem} They are left out.", stacklevel=2)
        ds = ds.subset(cache.rows)
    wanted, larger = ds.transforms.cache_side or 0, None
    if cache.shrunk and wanted > short_side:
        side = cache.side_within(TRAINING_BYTES, short_side, wanted)
        if side < wanted:
            note = (
                f"Training views of {ds.name!r} are cut from images of a short side of {side} pixels, not "
                f"{wanted}: at {wanted} these {len(ds)} images could take more than {TRAINING_BYTES / 2**30:g} GiB."
            )
            warnings.warn(note, stacklevel=2)
            ds = replace(ds, notes=(*ds.notes, note))
        larger = _larger_cache(whole, cache, side, workers, quiet) if side > short_side else None
    return Images(ds, cache, pick_device(device), larger)


def _larger_cache(ds: Dataset, cache: PixelCache, side: int, workers: int | None, quiet: bool) -> PixelCache | None:
    """The images of `cache` at a larger short side; None where that shows no more of any of them."""
    larger = open_or_build(ds, side, workers, quiet)
    if not np.array_equal(larger.rows, cache.rows):
        raise OodmlError(
            f"Of {ds.name!r} other images can be read at a short side of {side} pixels than at that of "
            "evaluation: repair or remove the images that cannot be read, or leave cache_side out."
        )
    return larger if (larger.heights > cache.heights).any() else None


class Images:
    """Decoded images. Positions are those of `dataset`; views are float32 (b, 3, size, size) in [0, 1].

    On a GPU all images are kept in its memory if they fit; otherwise every batch is gathered from the memory-mapped
    file into pinned memory and copied. The backbone, not this class, subtracts mean and standard deviation.

    `larger`: the same images with a larger short side, for training views alone. `memory_limit`: bytes of a GPU's
    memory that may be taken (default: a share of what is free).
    """

    def __init__(
        self,
        dataset: Dataset,
        cache: PixelCache,
        device: torch.device,
        larger: PixelCache | None = None,
        memory_limit: float | None = None,
    ) -> None:
        self.dataset, self.device, self.transforms = dataset, device, dataset.transforms
        self.heights, self.widths = cache.heights, cache.widths
        self.shrunk = cache.shrunk  # whether an original may be larger than its cached form for evaluation
        self._starts = cache.starts
        self._pixels = cache.pixels
        self._chunks = torch.from_numpy(cache.pixels).view(torch.int64)  # 8 bytes at a time: a gather moves words
        limit = _memory_limit(device) if memory_limit is None else memory_limit
        self.resident = self._chunks.nbytes <= limit
        self._small = max(cache.heights.max(initial=0), cache.widths.max(initial=0)) <= SMALL
        self._common_size = _common_size(cache)
        self._packed = None
        if device.type == "cuda" and self.resident:
            self._chunks = self._chunks.to(device)
            if importlib.util.find_spec("triton"):
                self._packed = _pack(cache, device)
        left = limit - self._chunks.nbytes if self.resident else limit
        self._larger = None if larger is None else Images(dataset, larger, device, memory_limit=left)

    def __len__(self) -> int:
        return len(self.heights)

    def __repr__(self) -> str:
        where = str(self.device) if self.resident else f"pinned batches to {self.device}"
        return f"Images({self.dataset.name!r}, {len(self)} images, {where})"

    def pixels(self, i: int) -> np.ndarray:
        """Image `i` as cached for evaluation: (H, W, 3) uint8."""
        height, width, start = int(self.heights[i]), int(self.widths[i]), int(self._starts[i])
        pitch = -(-width // CHUNK_PIXELS)
        return self._pixels[start : start + height * pitch].reshape(height, -1, 3)[:, :width]

    def eval_view(self, indices: Sequence[int] | np.ndarray | Tensor, size: int | None = None) -> Tensor:
        """Short side resized, centre cut; `size` (default: the transforms') scales the short side in proportion."""
        size = self.transforms.size if size is None else size
        return self._view(self._positions(indices), centred(self.transforms, size), size)

    def train_view(
        self,
        indices: Sequence[int] | np.ndarray | Tensor,
        generator: torch.Generator | None = None,
        crop_scale: tuple[float, float] | None = None,
        size: int | None = None,
    ) -> Tensor:
        """A newly drawn training view of each image; with a generator on the device nothing is synchronised."""
        if self._larger is not None:
            return self._larger.train_view(indices, generator, crop_scale, size)
        rows = self._positions(indices)
        how = self.transforms.override(crop_scale=crop_scale)
        size = how.size if size is None else size
        if how.train == "crop":
            side = round(how.short_side * size / how.size)
            return self._view(rows, lambda h, w: squeezed_random_crop(h, w, side, size, how.flip, generator), size)
        return self._view(
            rows,
            lambda h, w: random_resized_crop(h, w, size, how.crop_scale, how.crop_ratio, how.flip, generator),
            size,
        )

    def _positions(self, indices: Sequence[int] | np.ndarray | Tensor) -> np.ndarray:
        rows = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices, dtype=np.int64)
        if rows.ndim != 1 or (len(rows) and not (rows.min() >= 0 and rows.max() < len(self))):
            raise OodmlError(f"Positions of images must be a flat list of numbers between 0 and {len(self) - 1}.")
        return rows

    def _view(self, rows: np.ndarray, draw: Callable[[Tensor, Tensor], Views], size: int) -> Tensor:
        """Views of the images at `rows`, drawn from their heights and widths."""
        if self._packed is None:
            return self._apply(rows, draw(*self._extent(rows)), size)
        from oodml.data._view_kernel import view_packed

        starts, pitches, heights, widths = self._packed[:, self._send(rows)]
        return view_packed(self._chunks.view(torch.uint8).view(-1), starts, pitches, draw(heights, widths), size)

    def _extent(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return tuple(self._send(side[rows]) for side in (self.heights, self.widths))  # type: ignore[return-value]

    def _apply(self, rows: np.ndarray, views: Views, size: int) -> Tensor:
        if self.device.type == "cpu":
            if self._small and enlarges(views):
                return view_enlarged(self._padded(rows), views, size)
            return view_each([self.pixels(i) for i in rows], views, size)
        parts = [slice(i, i + _GPU_BATCH) for i in range(0, len(rows), _GPU_BATCH)] or [slice(0, 0)]
        made = [view_padded(self._padded(rows[p]), Views(*(f[p] for f in views)), size) for p in parts]
        return made[0] if len(made) == 1 else torch.cat(made)

    def _padded(self, rows: np.ndarray) -> Tensor:
        """The images as one array (b, H, W, 3) uint8 on the device, H and W those of the largest.

        Smaller images are padded with pixels of their own, which no view shows.
        """
        height = int(self.heights[rows].max(initial=1))
        across = -(-int(self.widths[rows].max(initial=1)) // CHUNK_PIXELS)
        place = self._send if self.resident else torch.from_numpy
        if self._common_size:
            table = self._chunks.view(-1, self._common_size * self._chunks.shape[1])
            chosen = place(self._starts[rows] // self._common_size)
        else:
            table, chosen = self._chunks, self._chunks_of(rows, height, across, place)
        if self.resident:
            words = table.index_select(0, chosen)
        else:
            words = torch.empty(len(chosen), table.shape[1], dtype=torch.int64, pin_memory=True)
            torch.index_select(table, 0, chosen, out=words)
            words = words.to(self.device, non_blocking=True)
        return words.view(torch.uint8).view(len(rows), height, across * CHUNK_PIXELS, 3)

    def _chunks_of(self, rows: np.ndarray, height: int, across: int, place: Callable[[np.ndarray], Tensor]) -> Tensor:
        """Indices of the chunks of these images, each image padded to (height, across): flat."""
        starts, heights, widths = (place(a[rows]) for a in (self._starts, self.heights, self.widths))
        pitch = (widths + CHUNK_PIXELS - 1) // CHUNK_PIXELS
        down = torch.arange(height, device=starts.device).expand(len(rows), height).minimum(heights[:, None] - 1)
        along = torch.arange(across, device=starts.device).expand(len(rows), across).minimum(pitch[:, None] - 1)
        return ((starts[:, None] + down * pitch[:, None])[:, :, None] + along[:, None, :]).view(-1)

    def _send(self, values: np.ndarray) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(values))
        return host.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else host


def _pack(cache: PixelCache, device: torch.device) -> Tensor:
    """Start and row pitch in bytes, height and width of every image, on the device: (4, N) int64."""
    chunk = CHUNK_PIXELS * 3
    pitches = -(-cache.widths // CHUNK_PIXELS) * chunk
    return torch.from_numpy(np.stack([cache.starts * chunk, pitches, cache.heights, cache.widths])).to(device)


def _common_size(cache: PixelCache) -> int | None:
    """Chunks per image, if all images have one size and begin at multiples of it: a table with a row per image."""
    sizes = cache.heights * -(-cache.widths // CHUNK_PIXELS)
    if not len(sizes) or np.ptp(cache.heights) or np.ptp(cache.widths):
        return None
    size = int(sizes[0])
    return None if len(cache.pixels) % size or (cache.starts % size).any() else size


def _memory_limit(device: torch.device) -> float:
    """Bytes that images may take in the device's memory; without a GPU they stay in their file."""
    return _GPU_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")


def centred(transforms: Transforms, size: int | None = None) -> Callable[[Tensor, Tensor], Views]:
    """A function of heights and widths that gives evaluation views; `size` scales the short side in proportion."""
    size = transforms.size if size is None else size
    short_side = round(transforms.short_side * size / transforms.size)
    return lambda heights, widths: centre_crop(heights, widths, short_side, size)


def view_one(image: str | Path | Image.Image, transforms: Transforms, size: int | None = None) -> Tensor:
    """The evaluation view of an image outside of a dataset, as `Images.eval_view`: (3, size, size) float32 in [0, 1].

    A file is decoded as for the cache; an image in memory is made upright and RGB. One difference may occur: `Images`
    rounds an image of at most 64 pixels a side to whole grey levels if its dataset has larger ones.
    """
    size = transforms.size if size is None else size
    pixels = np.array(_cached_form(image, transforms.short_side))
    views = centred(transforms, size)(*(torch.tensor([side]) for side in pixels.shape[:2]))
    if max(pixels.shape[:2]) <= SMALL and enlarges(views):
        return view_enlarged(torch.from_numpy(pixels[None]), views, size)[0].contiguous()
    return view_each([pixels], views, size)[0]


def _cached_form(image: str | Path | Image.Image, short_side: int) -> Image.Image:
    if isinstance(image, Image.Image):
        return shrink(upright_rgb(image.copy()), short_side)
    with Image.open(image) as opened:
        return shrink(upright_rgb(opened, short_side), short_side)
