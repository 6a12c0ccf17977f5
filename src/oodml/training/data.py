"""What a run trains and tests on: the classes of its split, the batches of its sampler, the inputs of its network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._errors import OodmlError
from oodml._split import Split, as_split, hold_out_classes
from oodml.config import RunConfig
from oodml.data import BatchSampler, Dataset, Images, Transforms, load_images, make_batch_sampler
from oodml.methods import Method
from oodml.training.seeds import child_seed

_OPENED: WeakKeyDictionary[Dataset, dict[tuple[str, Transforms], Images]] = WeakKeyDictionary()
LARGE_BATCH = 1000  # smaller ones may repeat the images of a small set as often as they like


@dataclass(frozen=True)
class Sets:
    """Positions of images in the dataset."""

    fit: np.ndarray  # trained on
    train: np.ndarray  # all train classes, validation included
    val: np.ndarray  # empty unless the selection holds classes out
    test: np.ndarray
    fit_labels: np.ndarray  # labels of `fit`, 0 .. number of its classes - 1

    @property
    def num_classes(self) -> int:
        return int(self.fit_labels.max()) + 1


def choose_split(dataset: Dataset, split: object) -> Split:
    """The split a run uses, checked against the dataset."""
    chosen = dataset.default_split if split == "default" else as_split(split)
    if chosen.test_dataset is not None:
        raise OodmlError(
            f"The split {chosen.name!r} tests on another dataset ({chosen.test_dataset!r}); train runs on one. "
            "Train with a split of this dataset, then evaluate the run on the other one."
        )
    return chosen


def validation_classes(split: Split) -> list[str]:
    """The validation classes of a split: its own, or a quarter of its train classes."""
    classes = list(split.val or hold_out_classes(split.train))
    if not classes:
        raise OodmlError(
            f"{len(split.train)} train classes are too few to hold some out for validation (two each are needed). "
            "Use selection='last', or 'test' as the papers do."
        )
    if len(classes) == 1:
        raise OodmlError(
            f"The split {split.name!r} has one validation class, {classes[0]!r}, on which every model scores 1. "
            "Give it two or more, or use selection='last', which holds none out."
        )
    return classes


def choose_sets(dataset: Dataset, split: Split, hold_out: bool) -> Sets:
    """Images by role; `hold_out` keeps the split's validation classes apart."""
    train, test = dataset.indices_of(split.train), dataset.indices_of(split.test)
    val_classes = validation_classes(split) if hold_out else []
    val = dataset.indices_of(val_classes) if val_classes else np.empty(0, dtype=np.int64)
    if hold_out and len(found := np.unique(dataset.labels[val])) < 2:
        raise OodmlError(
            f"Of the {len(val_classes)} validation classes of the split {split.name!r} {len(found)} can be read from "
            f"{dataset.name!r}, and selection needs at least two. Repair their images "
            f"({', '.join(val_classes[:3])}{', …' if len(val_classes) > 3 else ''}), give other validation classes, or "
            "use selection='last', which holds none out."
        )
    fit = np.setdiff1d(train, val)
    classes, fit_labels = np.unique(dataset.labels[fit], return_inverse=True)
    if len(classes) < 2:
        raise OodmlError(
            f"Training needs at least two classes; the split {split.name!r} of {dataset.name!r} leaves {len(classes)}. "
            "Use a split with more train classes, or selection='last', which holds none out."
        )
    return Sets(fit, train, val, test, fit_labels.astype(np.int64))


def make_sampler(config: RunConfig, sets: Sets) -> BatchSampler:
    """Every process draws the whole batch and takes its share of it, so a run does not depend on their number."""
    batch_size, images = int(config.batch_size or 0), len(sets.fit)
    if batch_size > max(LARGE_BATCH, 2 * images):  # a typing error that would fill the memory
        raise OodmlError(
            f"batch_size={batch_size:,} would hold each of the {images:,} training images {batch_size // images:,} "
            f"times: use at most {max(LARGE_BATCH, 2 * images):,}."
        )
    spec = {"name": config.sampler} if isinstance(config.sampler, str) else dict(config.sampler or {"name": "spc"})
    return make_batch_sampler(
        spec.pop("name"),
        sets.fit_labels,
        batch_size=batch_size,
        samples_per_class=int(config.samples_per_class or 0),
        seed=child_seed(config.seed, "data order"),
        **spec,
    )


def batches_of_turns(config: RunConfig, sampler: BatchSampler, method: Method, step: int) -> list[Iterator[np.ndarray]]:
    """One endless iterator of batches for each turn of a step (update of the method), starting at `step`.

    Turns composed by classes share the run's `sampler`: each takes its next batch.
    """
    labels = [method.batch_labels(turn) for turn in range(method.batches_per_step)]
    by_class = _endless(sampler)
    sampler.set_epoch(step * sum(each is None for each in labels) // len(sampler))  # no change when resumed within it
    return [
        by_class if each is None else _endless(_sampler_by_labels(config, each.cpu().numpy(), turn, step))
        for turn, each in enumerate(labels)
    ]


def _sampler_by_labels(config: RunConfig, labels: np.ndarray, turn: int, step: int) -> BatchSampler:
    """A sampler by labels that a method gave, one batch per step, positioned at `step`.

    At least two images per label, whatever the run's number per class, so that every image has a positive.
    """
    sampler = make_batch_sampler(
        "spc",
        labels,
        batch_size=int(config.batch_size or 0),
        samples_per_class=max(2, int(config.samples_per_class or 0)),
        seed=child_seed(config.seed, "data order", turn),
    )
    epoch, position = divmod(step, len(sampler))
    sampler.load_state_dict({**sampler.state_dict(), "epoch": epoch, "position": position})
    return sampler


def _endless(sampler: BatchSampler) -> Iterator[np.ndarray]:
    while True:
        yield from sampler


def open_images(
    dataset: Dataset, device: str | torch.device, config: RunConfig | None = None, quiet: bool = False
) -> Images:
    """The decoded images, with the training transform of a run if its `config` is given.

    A dataset is opened once per device and transform, and stays open as long as the dataset is in use.
    """
    transforms, workers = dataset.transforms, config.workers if config else None
    if config is not None:
        transforms = transforms.override(train=config.transform, cache_side=config.cache_side)
    opened = _OPENED.setdefault(dataset, {})
    key = (str(device), transforms)
    if key not in opened:
        opened[key] = load_images(dataset, device, workers=workers, quiet=quiet, transforms=transforms)
    return opened[key]


class Source(Protocol):
    """Inputs by the image's position in the dataset; positions are on the host, inputs on the device."""

    def train(self, positions: np.ndarray, generator: torch.Generator) -> Tensor: ...

    def evaluate(self, positions: np.ndarray) -> Tensor: ...


class ImageSource:
    """Augmented views for training, the evaluation view otherwise, made on the device. `size`: their side.

    Pixels are channels-last: convolution, batch-norm and pooling are 2-3 times as fast, on a CPU too.
    """

    def __init__(self, images: Images, crop_scale: tuple[float, float] | None = None, size: int | None = None) -> None:
        self.images, self.crop_scale, self.size = images, crop_scale, size

    def train(self, positions: np.ndarray, generator: torch.Generator) -> Tensor:
        views = self.images.train_view(positions, generator, self.crop_scale, self.size)
        return views.contiguous(memory_format=torch.channels_last)

    def evaluate(self, positions: np.ndarray) -> Tensor:
        return self.images.eval_view(positions, self.size).contiguous(memory_format=torch.channels_last)


class FeatureSource:
    """Cached pooled features (1 + views, N, D): a random view for training, the first for evaluation."""

    def __init__(self, features: np.ndarray | Tensor, device: torch.device) -> None:
        self.features = torch.as_tensor(features, device=device)

    def train(self, positions: np.ndarray, generator: torch.Generator) -> Tensor:
        rows = to_device(positions, self.features.device)
        view = torch.randint(len(self.features), rows.shape, generator=generator, device=rows.device)
        return self.features[view, rows]

    def evaluate(self, positions: np.ndarray) -> Tensor:
        return self.features[0, to_device(positions, self.features.device)]

    def spread(self, positions: np.ndarray) -> Tensor:
        """Overall standard deviation of these images' features, by which the embedder divides."""
        return self.features[:, to_device(positions, self.features.device)].std()


def to_device(positions: np.ndarray, device: torch.device) -> Tensor:
    """Positions on the device; pinned memory lets the copy happen without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(positions))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def resized(images: Tensor, side: int) -> Tensor:
    """Square images with this side, unchanged if they have it (as `extract_features` does)."""
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True)
