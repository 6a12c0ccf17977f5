"""Speed of a training step, as a share of what its backbone alone can do.

    python benchmarks/training.py [--device cpu|cuda] [--backbone tiny|resnet50] [--batch 112] [--precision fp32|bf16]
                                  [--methods margin rho s2sd:margin ...] [--root FOLDER_OR_TAR] [--json OUT]

The limit, in the same run and in turns with each method: forward + backward of the same backbone (compiled and
channels-last as in training) on a batch that lies on the device already; no augmentation, no head, no loss, no
optimiser. A step of ours draws the batch, cuts augmented views from the decoded uint8 store, embeds, mines, computes
the loss, goes back and updates. Without --root the pictures are glyphs (tiny) or made up (256 x 256 to 340 x 256).

A method that has a base loss is measured in turns with that loss too ("s2sd:margin" names another base than its own).
Images are those of all batches of a step: `sharing` takes two. `diva` looks at every image twice and counts it once.
A method that fails is named at the end and costs no other its numbers; --json holds every row as soon as it is known.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import inspect
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from oodml._files import write_json
from oodml.config import RunConfig
from oodml.data import ArraySource, Dataset, build_dataset, load_dataset, register_dataset
from oodml.losses import list_losses
from oodml.methods import list_methods, make_method, method_record
from oodml.models.embedder import Embedder
from oodml.training.distributed import join
from oodml.training.embedder import starting_backbone
from oodml.training.job import Job, build_job, prepare_images
from oodml.training.loop import take_step
from oodml.training.stopping import LossMonitor

BESIDE_LOSSES = ("rho", "s2sd", "sharing", "diva", "uniform_prior", "mixup")
FIRST_STEP = 2000  # far enough into a run that what a method begins late (S2SD's features: step 1,000) has begun
WARM_UP = 6  # steps: compilation, CUDA graphs, caches

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", help="default: resnet50 on a GPU, tiny on a CPU")
    parser.add_argument("--weights", help="a file of weights for the backbone; default: none, speed does not need them")
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--dim", type=int, default=128, help="of the embedding; a multiple of 4 for diva")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--methods", nargs="+", help=f"default: every loss, {', '.join(BESIDE_LOSSES)}")
    parser.add_argument("--root", help="real pictures: a folder or tar of class folders")
    parser.add_argument("--steps", type=int, help="steps a measurement; default 20 on a GPU, 8 on a CPU")
    parser.add_argument("--rounds", type=int, help="measurements; default 4 on a GPU, 5 on a CPU")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    options.backbone = options.backbone or ("resnet50" if on_gpu else "tiny")
    options.steps = options.steps or (20 if on_gpu else 8)
    options.rounds = options.rounds or (4 if on_gpu else 5)
    options.methods = options.methods or [*list_losses(), *BESIDE_LOSSES]
    # One process compiles what many runs would; a fall back to eager must be a failure, not a slow number.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    torch._dynamo.config.fail_on_recompile_limit_hit = True

    job = first_job(options)
    limit = limit_of(job)
    rows: list[Row] = []
    for name in options.methods:
        rows.append(attempt(job, name, limit, options))
        if options.json:
            write_json(options.json, {"options": {**vars(options), "json": None}, "rows": rows})
    show(rows, options)
    sys.exit(int(any("error" in row for row in rows)))


def attempt(job: Job, name: str, limit: Callable[[], None], options: argparse.Namespace) -> Row:
    """The numbers of a method, or its failure."""
    began = time.perf_counter()
    try:
        base = base_of(name)
        row = measure(swap(job, name), swap(job, base) if base else None, name, limit, options)
    except Exception as error:  # whatever it is, the other methods still count
        traceback.print_exc()
        row = {"method": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    told = row.get("error") or f"{100 * row['share']:.1f} % of the limit"
    print(f"{name}: {told} ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
    return row


def base_of(name: str) -> str | None:
    """The base loss of a method; None for a loss."""
    method, _, base = name.partition(":")
    if base or method not in list_methods():
        return base or None
    parameter = inspect.signature(method_record(method).factory).parameters.get("base")
    return parameter.default if parameter else None


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
    images = prepare_images(config, dataset, processes)
    return build_job(config, Path(tempfile.mkdtemp()), images, starting_backbone(config), processes, stop_at=None)


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
    """The same run with another method on the same backbone, as `build_job` would lay it out."""
    name, _, base = name.partition(":")
    method = make_method(name, **({"base": base} if base else {}))
    method.check(int(job.config.embedding_dim or 0), "all")
    method.setup(dataclasses.replace(job.method.context, generator=job.generator))
    embedder = Embedder(job.embedder.backbone, method.heads(job.embedder.feature_dim), job.embedder.feature_dim)
    embedder.autocast = job.embedder.autocast
    embedder.to(job.processes.device).train()
    method.connect(embedder)
    method.to(job.processes.device)
    if job.processes.device.type == "cuda" and job.config.compile is not False:
        method.compile_parts()
    lr = float(job.config.lr or 0)
    groups = [*embedder.param_groups(lr, float(job.config.weight_decay or 0)), *method.param_groups(lr)]
    optimiser = torch.optim.Adam(groups, fused=True)
    length = len(job.sampler)
    return dataclasses.replace(job, method=method, embedder=embedder, optimiser=optimiser, steps_per_epoch=length)


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


def images_per_step(job: Job) -> int:
    return int(job.config.batch_size or 0) * job.method.batches_per_step


def measure(job: Job, base: Job | None, name: str, limit: Callable[[], None], options: argparse.Namespace) -> Row:
    """Seconds an image of the limit, of the base loss and of the method, in turns; the median of each counts."""

    def timed(action: Callable[[], None], images: int, count: int = options.steps) -> float:
        synchronise(job)
        began = time.perf_counter()
        for _ in range(count):
            action()
        synchronise(job)
        return (time.perf_counter() - began) / (count * images)

    turns = [(limit, options.batch), *((stepper(each, options), images_per_step(each)) for each in (base, job) if each)]
    for action, images in turns:
        timed(action, images, WARM_UP)
    rounds = np.array([[timed(action, images) for action, images in turns] for _ in range(options.rounds)])
    alone, ours = np.median(rounds[:, 0]), np.median(rounds[:, -1])
    row = {
        "method": name,
        "limit": round(1 / alone, 1),
        "ours": round(1 / ours, 1),
        "share": round(float(np.median(rounds[:, 0] / rounds[:, -1])), 4),
        "step_ms": round(1000 * ours * images_per_step(job), 2),
    }
    if base:
        row["over_base"] = round(float(np.median(rounds[:, -1] / rounds[:, 1])), 4)
    return row


def stepper(job: Job, options: argparse.Namespace) -> Callable[[], None]:
    """A function that takes the next step of a run, and looks at its losses when training would at the latest."""
    watch = LossMonitor(options.steps * job.method.batches_per_step, job.processes.device)
    job = dataclasses.replace(job, sampler=copy.deepcopy(job.sampler))
    steps = job.steps(FIRST_STEP)

    def step() -> None:
        number, _, batches = next(steps)
        take_step(job, number, batches, watch, "")
        if watch.is_full:
            watch.read("")

    return step


def synchronise(job: Job) -> None:
    if job.processes.device.type == "cuda":
        torch.cuda.synchronize()


def show(rows: list[Row], options: argparse.Namespace) -> None:
    title = f"{options.backbone}, batch {options.batch}, {options.device}, {options.precision}: images/s"
    table = Table(title=title, title_justify="left")
    for column in ("method", "backbone alone", "training", "share of the limit", "ms a step", "time over its base"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        if "error" in row:
            table.add_row(row["method"], "failed")
            continue
        over = f"{100 * row['over_base'] - 100:+.1f} %" if "over_base" in row else ""
        numbers = f"{row['limit']:,.0f}", f"{row['ours']:,.0f}", f"{100 * row['share']:.1f} %", f"{row['step_ms']:.1f}"
        table.add_row(row["method"], *numbers, over)
    console = Console(width=100)
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(f"{row['method']} failed: {row['error']}", markup=False)


if __name__ == "__main__":
    main()
