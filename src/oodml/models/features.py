"""Features of a whole dataset, computed once and kept on disk: one file per view, named by all that they depend on."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor, nn

from oodml._errors import OodmlError, unknown_name
from oodml._files import atomic_file, cache_root, exclusive
from oodml._machine import pick_device
from oodml._progress import stage
from oodml.models.backbones import Backbone, make_backbone
from oodml.models.engines import make_engine

if TYPE_CHECKING:
    from oodml.data import Dataset

SMALLEST_INPUT = 64  # ImageNet networks reduce their input 32-fold: a 32-pixel glyph would give a 1 × 1 map
LARGEST_INPUT = 1024  # larger than any backbone was trained on; memory grows with its square
POOLINGS = ("avg", "avg+max")
_FORMAT = 1  # of the files; raise it when the way features are computed changes their values


def extract_features(
    ds: Dataset,
    backbone: str | Backbone = "tf_efficientnet_lite0",
    weights: str | Path | None = None,
    views: int = 0,
    size: int | None = None,
    device: str | torch.device = "auto",
    batch_size: int = 64,
    crop_scale: tuple[float, float] | None = (0.35, 1.0),
    seed: int = 0,
    pooling: str = "avg",
    cache: bool = True,
    quiet: bool = False,
) -> np.ndarray:
    """Pooled, unnormalised features of every image: (N, D) float32, in the dataset's order.

    Images go through the evaluation transform of the dataset. With `views=v` the result is (1 + v, N, D): the
    evaluation view, then v augmented ones (the dataset's training transform with crops of `crop_scale`, drawn from
    `seed`; view i is the same whatever v is).

    backbone    a name for `make_backbone`, or a `Backbone`, which is not changed
    size        side of the images the backbone sees; default: the dataset's, but at least 64
    crop_scale  share of the image's area an augmented view shows; None: the dataset's own
    pooling     "avg", or "avg+max" for the average followed by the maximum (2D numbers per image)
    cache       keep every view on disk, by data, backbone, weights, transform, size and pooling

    On a CPU it uses OpenVINO if that is installed (`pip install openvino`), else torch; the progress bar names it.
    """
    _check(ds, views, size, batch_size, pooling)
    check_weights(backbone, weights)
    model = copy.deepcopy(backbone) if isinstance(backbone, Backbone) else make_backbone(backbone, weights=weights)
    job = _Job(
        ds=ds,
        model=model,
        weights_id=model.weights_id,
        size=size or max(ds.image_size, SMALLEST_INPUT),
        device=pick_device(device),
        batch_size=batch_size,
        crop_scale=crop_scale,
        seed=seed,
        pooling=pooling,
        quiet=quiet,
    )
    wanted = range(1 + views)
    if not cache:
        found = dict(job.compute(wanted))
        return np.stack([found[view] for view in wanted]) if views else found[0]
    facts = [job.facts(view) for view in wanted]
    files = [feature_file(each) for each in facts]
    found = _kept(files, wanted, len(ds))  # without the lock: finished features are read from a read-only disk too
    if len(found) < len(wanted):
        with exclusive(files[0].with_suffix(".lock")):  # of two processes that start together one computes, one reads
            found |= _kept(files, [view for view in wanted if view not in found], len(ds))
            for view, features in job.compute([view for view in wanted if view not in found]):
                write_features(files[view], features, facts[view])
                found[view] = features
    return np.stack([found[view] for view in wanted]) if views else found[0]


def check_weights(backbone: str | Backbone, weights: str | Path | None) -> None:
    """Raise for a file of weights given with a backbone that has weights already."""
    if weights is not None and isinstance(backbone, Backbone):
        raise OodmlError(
            f"weights={str(weights)!r} would not be read: the backbone {backbone.name!r} is given with its weights. "
            "Leave weights out, or give the backbone by its name."
        )


def _kept(files: Sequence[Path], views: Sequence[int], images: int) -> dict[int, np.ndarray]:
    """The views whose features are on disk, whole."""
    return {view: kept for view in views if (kept := read_features(files[view], images)) is not None}


@dataclass(frozen=True)
class _Job:
    """One call of `extract_features`, its arguments checked and completed."""

    ds: Dataset
    model: Backbone
    weights_id: str
    size: int
    device: torch.device
    batch_size: int
    crop_scale: tuple[float, float] | None
    seed: int
    pooling: str
    quiet: bool

    def facts(self, view: int) -> dict[str, Any]:
        """Everything the features of a view depend on."""
        transform = asdict(self.ds.transforms)
        if view == 0 or self.ds.transforms.cache_side is None:
            del transform["cache_side"]  # has no effect
        facts: dict[str, Any] = {
            "data": self.ds.fingerprint,
            "transform": transform,
            "backbone": self.model.name,
            "weights": self.weights_id,
            "size": self.size,
            "pooling": self.pooling,
        }
        if view > 0:  # random crops are drawn a batch at a time by the device's own generator
            drawn = {"seed": self.seed, "view": view, "batch_size": self.batch_size, "device": self.device.type}
            facts |= {"crop_scale": self.crop_scale, **drawn}
        return facts

    def compute(self, views: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Each view's features (N, D) as soon as they are ready; 0 is the evaluation view."""
        if not views:
            return
        from oodml.data import load_images

        images = load_images(self.ds, self.device, quiet=self.quiet)
        if len(images) != len(self.ds):
            raise OodmlError(
                f"{len(self.ds) - len(images)} images of {self.ds.name!r} cannot be read, and features must match "
                "its labels row by row. Repair them, or leave them out: ds = oodml.data.load_images(ds).dataset."
            )
        engine = make_engine(_Pooled(self.model, self.pooling), self.device, self.size, self.quiet)
        batches = np.split(np.arange(len(self.ds)), range(self.batch_size, len(self.ds), self.batch_size))
        with stage(f"Features ({engine.name})", len(views) * len(self.ds), self.quiet) as advance:
            for view in views:
                generator = torch.Generator(self.device).manual_seed(_view_seed(self.seed, view))
                parts = []
                for rows in batches:
                    batch = (
                        images.train_view(rows, generator, crop_scale=self.crop_scale, size=self.size)
                        if view > 0
                        else images.eval_view(rows, size=self.size)
                    )
                    parts.append(engine(batch))
                    advance(len(rows))
                yield view, torch.cat(parts).cpu().numpy()


class _Pooled(nn.Module):
    """A backbone with pooling on top: (b, D), or (b, 2D) with the maximum after the average."""

    def __init__(self, backbone: Backbone, pooling: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.with_maximum = pooling == "avg+max"

    def forward(self, images: Tensor) -> Tensor:
        maps = self.backbone(images)
        average = maps.mean((2, 3))
        return torch.cat([average, maps.amax((2, 3))], 1) if self.with_maximum else average


def _view_seed(seed: int, view: int) -> int:
    return int.from_bytes(hashlib.sha256(f"features/{seed}/{view}".encode()).digest()[:8], "big") >> 1


def _check(ds: Dataset, views: int, size: int | None, batch_size: int, pooling: str) -> None:
    if len(ds) == 0:
        raise OodmlError(f"The dataset {ds.name!r} has no images to compute features of.")
    if views < 0:
        raise OodmlError(f"views is a number of augmented copies, 0 or more; got {views}.")
    if batch_size < 1:
        raise OodmlError(f"batch_size must be at least 1, got {batch_size}.")
    if size is not None and not 8 <= size <= LARGEST_INPUT:
        raise OodmlError(f"size is the side of the images in pixels, 8 to {LARGEST_INPUT:,}; got {size}.")
    if pooling not in POOLINGS:
        raise unknown_name("pooling", pooling, POOLINGS)


def feature_file(facts: Mapping[str, Any]) -> Path:
    """The file of features that depend on `facts` and on nothing else."""
    text = json.dumps({"format": _FORMAT, **facts}, sort_keys=True)
    return cache_root() / "features" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"


def write_features(path: Path, features: np.ndarray, facts: Mapping[str, Any]) -> None:
    """Write features with their checksum and the facts."""
    metadata = {"sha256": _checksum(features), "facts": json.dumps(facts, sort_keys=True)}
    with atomic_file(path) as temporary:
        save_file({"features": features}, temporary, metadata=metadata)


def read_features(path: Path, images: int) -> np.ndarray | None:
    """The features in `path` (N, D); None if there is no file or if it is damaged."""
    try:
        with safe_open(path, framework="np") as file:
            features, metadata = file.get_tensor("features"), file.metadata() or {}
    except (OSError, SafetensorError, ValueError):
        return None
    intact = features.shape[:1] == (images,) and metadata.get("sha256") == _checksum(features)
    return features if intact else None


def _checksum(features: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(features).data).hexdigest()
