"""Speed of a training step, as a share of what its backbone alone can do.

    python benchmarks/training.py [--device cpu|cuda] [--backbone tiny|resnet50] [--batch 112] [--precision fp32|bf16]
                                  [--methods margin rho ...] [--root FOLDER_OR_TAR] [--json OUT]

The limit, in the same run and in turns with each method: forward + backward of the same backbone (compiled and
channels-last as in training) on a batch that lies on the device already; no augmentation, no head, no loss, no
optimiser. A step of ours draws the batch, cuts augmented views from the decoded uint8 store, embeds, mines, computes
the loss, goes back and updates. Without --root the pictures are glyphs (tiny) or made up (256 x 256 to 340 x 256).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from oodml.config import RunConfig
from oodml.data import ArraySource, Dataset, build_dataset, load_dataset, register_dataset
from oodml.losses import list_losses
from oodml.methods import make_method
from oodml.models.embedder import Embedder
from oodml.training.distributed import join
from oodml.training.job import Job, build_job, load_pictures
from oodml.training.loop import take_step
from oodml.training.watch import LossWatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", help="default: resnet50 on a GPU, tiny on a CPU")
    parser.add_argument("--weights", help="a file of weights for the backbone; default: none, speed does not need them")
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--methods", nargs="+", help="default: every loss, rho, and s2sd where it is there")
    parser.add_argument("--root", help="real pictures: a folder or tar of class folders")
    parser.add_argument("--steps", type=int, help="steps a measurement; default 40 on a GPU, 8 on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    options.backbone = options.backbone or ("resnet50" if on_gpu else "tiny")
    options.steps = options.steps or (40 if on_gpu else 8)
    options.methods = options.methods or [*list_losses(), "rho", "s2sd"]

    job = first_job(options)
    limit = limit_of(job)
    rows = [measure(swap(job, name), name, limit, options) for name in options.methods]
    show(rows, options)
    if options.json:
        options.json.write_text(
            json.dumps({"options": vars(options) | {"json": None}, "rows": rows}, indent=1, default=str)
        )


def first_job(options: argparse.Namespace) -> Job:
    """A run laid out as training does it; only its method is exchanged later, so the backbone compiles once."""
    dataset = pictures(options)
    register_dataset(dataset.name, lambda: dataset, replace=True, summary="The benchmark's pictures.")
    config = RunConfig(
        dataset=dataset.name,
        backbone=options.backbone,
        weights=options.weights,
        pretrained=options.weights is not None,
        frozen_bn=options.backbone != "tiny",
        embedding_dim=options.dim,
        batch_size=options.batch,
        samples_per_class=2,
        steps=10**6,
        selection="last",
        precision=options.precision,
        compile=False if options.no_compile else None,
        device=options.device,
        method="margin",
        quiet=True,
    ).resolved()
    processes = join(options.device)
    images = load_pictures(config, dataset, processes)
    return build_job(config, Path(tempfile.mkdtemp()), images, processes, stop_at=None)


def pictures(options: argparse.Namespace) -> Dataset:
    if options.root:
        return load_dataset("folder", root=options.root)
    if options.backbone == "tiny":
        return load_dataset("glyphs")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2240, 256, 340, 3), dtype=np.uint8)
    names = [f"class{i // 20:03}" for i in range(len(pixels))]
    return build_dataset("made-up", ArraySource(pixels, [f"{i}.png" for i in range(len(pixels))]), names)


def swap(job: Job, name: str) -> Job:
    """The same run with another method on the same backbone."""
    method = make_method(name)
    method.setup(dataclasses.replace(job.method.context, total_steps=1000))
    embedder = Embedder(job.embedder.backbone, method.heads(job.embedder.feature_dim), job.embedder.feature_dim)
    embedder.autocast = job.embedder.autocast
    embedder.to(job.processes.device).train()
    method.to(job.processes.device)
    if job.processes.device.type == "cuda" and job.config.compile is not False:
        method.compile_parts()
    lr = float(job.config.lr or 0)
    groups = [*embedder.param_groups(lr, float(job.config.weight_decay or 0)), *method.param_groups(lr)]
    optimiser = torch.optim.Adam(groups, fused=True)
    return dataclasses.replace(job, method=method, embedder=embedder, optimiser=optimiser)


def limit_of(job: Job) -> Callable[[], None]:
    """Forward + backward of the backbone alone on a batch that is already there."""
    device, size = job.processes.device, job.dataset.image_size
    batch = torch.rand(int(job.config.batch_size or 0), 3, size, size, device=device)
    batch = batch.contiguous(memory_format=torch.channels_last)
    backbone, dtype = job.embedder.backbone, job.embedder.autocast

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            maps = backbone(batch)
        maps.mean((2, 3), dtype=torch.float32).square().mean().backward()
        for parameter in backbone.parameters():
            parameter.grad = None

    return step


def measure(job: Job, name: str, limit: Callable[[], None], options: argparse.Namespace) -> dict[str, Any]:
    """Images a second of both, in turns; the median of each counts."""
    watch = LossWatch(options.steps, job.processes.device)
    job.sampler.set_epoch(-1)  # the methods share a sampler: begin again
    steps = job.steps(0)

    def ours() -> None:
        step, _, batches = next(steps)
        take_step(job, step, batches, watch, "")

    def timed(action: Callable[[], None]) -> float:
        synchronise(job)
        began = time.perf_counter()
        for _ in range(options.steps):
            action()
        if watch.seen:
            watch.read("")  # part of training too: the loss is looked at once a log line
        synchronise(job)
        return options.steps * options.batch / (time.perf_counter() - began)

    for action in (limit, ours):  # compile, fill caches
        timed(action)
    rates = [(timed(limit), timed(ours)) for _ in range(options.rounds)]
    bare, full = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(ours / alone for alone, ours in rates)
    return {"method": name, "limit": round(bare, 1), "ours": round(full, 1), "share": round(ratio, 4)}


def synchronise(job: Job) -> None:
    if job.processes.device.type == "cuda":
        torch.cuda.synchronize()


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    title = f"{options.backbone}, batch {options.batch}, {options.device}, {options.precision}: images/s"
    table = Table(title=title, title_justify="left")
    for column in ("method", "backbone alone", "training", "share of the limit"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        table.add_row(row["method"], f"{row['limit']:,.0f}", f"{row['ours']:,.0f}", f"{100 * row['share']:.0f} %")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
