"""A run laid out: everything the loop needs, built from the settings in the order in which things can go wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml._split import Split
from oodml.config import RunConfig
from oodml.data import BatchSampler, Dataset, Images
from oodml.evaluation.kmeans import kmeans
from oodml.methods import Batch, Context, Method, make_method
from oodml.models import Backbone, extract_features, freeze_batchnorm, own_seed
from oodml.models.embedder import Embedder
from oodml.training import distributed
from oodml.training.data import (
    FeatureSource,
    ImageSource,
    Sets,
    Source,
    batches_of_turns,
    choose_sets,
    choose_split,
    make_sampler,
    open_images,
    to_device,
)
from oodml.training.distributed import Processes
from oodml.training.embedder import freezes_batchnorm, frozen_embedder
from oodml.training.optimiser import Schedule, make_schedule
from oodml.training.seeds import child_seed, reseed

EVALUATIONS = 10  # of a run given in steps


@dataclass
class Job:
    """The parts of a run. `total_steps` is its full length, `stop` where this one ends (the same unless it repeats
    a run up to an epoch that was chosen before)."""

    config: RunConfig
    out: Path
    processes: Processes
    dataset: Dataset
    split: Split
    sets: Sets
    source: Source
    embedder: Embedder
    method: Method
    optimiser: torch.optim.Adam
    schedule: Schedule
    sampler: BatchSampler
    labels: Tensor
    generator: torch.Generator
    augmentation: torch.Generator
    steps_per_epoch: int
    total_steps: int
    stop: int

    @property
    def eval_batch(self) -> int:
        return 512 if self.processes.device.type == "cuda" else 128

    def evaluates_after(self, step: int) -> bool:
        """Whether the model is evaluated once `step` steps are done: at even points, and always at the end."""
        every = self.config.eval_every
        if self.config.steps is None:
            return step == self.stop or step % ((every or 1) * self.steps_per_epoch) == 0
        if every is not None:
            return step == self.stop or step % every == 0
        points = {round(self.total_steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS)}
        return step == self.stop or step in points

    def saves_after(self, step: int) -> bool:
        every = self.config.checkpoint_every
        return step % self.steps_per_epoch == 0 or (every is not None and step % every == 0)

    def steps(
        self, start: int, begin_epoch: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, int, list[np.ndarray]]]:
        """(step, epoch, its batches of positions in the fit set) from `start` on, one epoch after the other.

        An epoch shows every image to each turn of the method, in separate batches. `begin_epoch` is called before the
        first batch of an epoch is drawn.
        """
        turns: list[Iterator[np.ndarray]] = []
        for step in range(start, self.stop):
            epoch, within = divmod(step, self.steps_per_epoch)
            if within == 0 and begin_epoch is not None:
                begin_epoch(epoch)
            if within == 0 or not turns:
                turns = batches_of_turns(self.config, self.sampler, self.method, step)
            yield step, epoch, [next(batches) for batches in turns]

    def batch(self, positions: np.ndarray, step: int, turn: int) -> Batch:
        """Inputs of this process's share, labels of the whole batch; generators are seeded for this batch."""
        seed = self.config.seed
        reseed(self.generator, seed, "mining", step, turn)
        reseed(self.augmentation, seed, "augmentation", step, turn, self.processes.rank)
        mine = self.sets.fit[self.processes.share(positions)]

        def view() -> Tensor:
            return self.source.train(mine, self.augmentation)

        return Batch(view(), self.labels[to_device(positions, self.labels.device)], positions, turn, view)


def build_job(
    config: RunConfig, out: Path, images: Images, backbone: Backbone, processes: Processes, stop_at: float | None
) -> Job:
    """Lay out a run on opened images and a `starting_backbone`. `stop_at` (in epochs, or in steps where the run's
    length is given so) ends it early, on the schedule of its full length."""
    dataset = images.dataset  # without the images that could not be read
    split = choose_split(dataset, config.split)
    sets = choose_sets(dataset, split, hold_out=config.selection == "val")
    sampler = make_sampler(config, sets)
    method = make_method(config.method or "margin")
    steps_per_epoch = len(sampler)
    total_steps = config.steps or int(config.epochs or 0) * steps_per_epoch
    device = processes.device
    generator = reseed(torch.Generator(device=device), config.seed, "init")
    context = Context(
        num_classes=sets.num_classes,
        embedding_dim=int(config.embedding_dim or 0),
        feature_dim=backbone.feature_dim,
        total_steps=total_steps,
        train=config.train or "all",
        lr=float(config.lr or 0),
        batch_size=int(config.batch_size or 0),
        num_images=len(sets.fit),
        device=device,
        generator=generator,
        load_teacher=lambda teacher: frozen_embedder(
            _teacher_folder(teacher, out), str(device), backbone if config.train == "head" else None
        ),
        cluster=lambda rows, k: _cluster(rows, k, child_seed(config.seed, "k-means"), processes),
    )
    with own_seed(child_seed(config.seed, "init")):
        method.setup(context)
        embedder = Embedder(backbone, method.heads(backbone.feature_dim), backbone.feature_dim)
    source = _make_source(config, images, embedder, sets, processes)
    with own_seed(child_seed(config.seed, "connect")):
        method.connect(embedder)
    _place(embedder, method, config, processes)
    groups = embedder.param_groups(float(config.lr or 0), float(config.weight_decay or 0), config.head_lr)
    optimiser = torch.optim.Adam([*groups, *method.param_groups(float(config.lr or 0))], fused=True)
    for group in optimiser.param_groups:
        group["initial_lr"] = group["lr"]
    return Job(
        config=config,
        out=out,
        processes=processes,
        dataset=dataset,
        split=split,
        sets=sets,
        source=source,
        embedder=embedder,
        method=method,
        optimiser=optimiser,
        schedule=make_schedule(config.schedule or "constant", total_steps, steps_per_epoch, config.warmup or 0.0),
        sampler=sampler,
        labels=torch.from_numpy(sets.fit_labels).to(device),
        generator=generator,
        augmentation=torch.Generator(device=device),
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        stop=total_steps if stop_at is None else round(stop_at * (1 if config.steps else steps_per_epoch)),
    )


def prepare_images(config: RunConfig, dataset: Dataset, processes: Processes) -> Images:
    """The images on the device where the backbone trains; the main process decodes, the others wait."""
    device = processes.device if config.train == "all" else torch.device("cpu")
    if not processes.is_main:
        processes.barrier()
    images = open_images(dataset, device, config, config.quiet)
    if processes.is_main:
        processes.barrier()
    return images


def _teacher_folder(teacher: str | Mapping[str, str], out: Path) -> Path:
    """The folder of a teacher. A teacher named by its run ID is next to `out`, or next to the run that contains `out`
    as its search."""
    if isinstance(teacher, str):
        return Path(teacher)
    for parent in list(out.parents)[:2]:
        if (parent / teacher["run"] / "embedder.safetensors").is_file():
            return parent / teacher["run"]
    raise OodmlError(
        f"The teacher {teacher['run']} is not a finished run in {out.parent}: train it there first, or give its folder "
        "as teacher."
    )


def _cluster(rows: Tensor, k: int, seed: int, processes: Processes) -> Tensor:
    """The k-means cluster of each row, (n,) int64 on its device, computed by the main process and sent to all."""
    found = kmeans(rows, k, seed).labels.cpu() if processes.is_main else None
    return processes.broadcast(found).to(rows.device)


def _make_source(config: RunConfig, images: Images, embedder: Embedder, sets: Sets, processes: Processes) -> Source:
    if config.train == "all":
        return ImageSource(images, config.crop_scale)
    for parameter in embedder.backbone.parameters():
        parameter.requires_grad_(False)
    features = extract_features(
        images.dataset,
        embedder.backbone,
        views=config.views or 0,
        crop_scale=config.crop_scale,
        pooling="avg+max" if embedder.needs_max else "avg",
        device=processes.device,
        quiet=config.quiet,
    )
    source = FeatureSource(features if features.ndim == 3 else features[None], processes.device)
    embedder.feature_scale.copy_(source.spread(sets.fit))
    return source


def _place(embedder: Embedder, method: Method, config: RunConfig, processes: Processes) -> None:
    """Move to the device, settle its memory, freeze batch-norm, choose precision, compile, connect the processes."""
    device, on_gpu = processes.device, processes.device.type == "cuda"
    backbone = embedder.backbone
    if not on_gpu:
        keep_freed_memory()
    if freezes_batchnorm(config, backbone):
        freeze_batchnorm(backbone)
    elif processes.count > 1 and on_gpu:
        embedder.backbone = nn.SyncBatchNorm.convert_sync_batchnorm(backbone)
    embedder.to(device)
    method.to(device)
    distributed.synchronise(embedder)
    distributed.synchronise(method)
    embedder.train()
    embedder.chunk = config.grad_cache
    embedder.gather = distributed.gather if processes.count > 1 else None
    if config.precision == "bf16" or (config.precision == "auto" and on_gpu):
        embedder.autocast = torch.bfloat16
    if config.train == "all":
        embedder.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.train == "all" and (on_gpu if config.compile is None else config.compile):
        # CUDA graphs: launching its kernels one by one would take the host as long as the GPU needs to run them. A
        # graph writes its maps to the same memory at every replay; `Embedder` pools them at once into separate memory,
        # and torch replays none over what a pending backward pass needs: methods may call the backbone again.
        graphs = on_gpu and processes.count == 1 and config.grad_cache is None
        embedder.backbone.compile(dynamic=False, mode="reduce-overhead" if graphs else None)
        method.compile_parts()


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for the next step; whether it could be asked to (glibc).

    Every training step allocates the same arrays and frees them. By default their pages return to the system and are
    faulted in again one by one, which takes up to half the time of a step of a small network.
    """
    trim_threshold, mmap_threshold = -1, -3  # names of glibc's settings
    always_accepted = 32 * 2**20  # the largest value that older versions of glibc accept
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    large = 2**30
    kept = mallopt(mmap_threshold, large) or mallopt(mmap_threshold, always_accepted)
    return bool(kept and mallopt(trim_threshold, large))
