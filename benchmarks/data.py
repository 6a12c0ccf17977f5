"""Speed of the data room: decoding into the cache, and batches of augmented views from it.

    python benchmarks/data.py [--root FOLDER_OR_TAR] [--limit 1500] [--device cpu|cuda]

Peers, in the same run: a plain Pillow loop (decode, resize, write) in one process, and a torch `DataLoader` of two
workers that decodes every picture anew and transforms it with torchvision v2. Ours and theirs take turns. Decoding is
counted in processor time (median), batches in wall time (best). Without CUB beside the checkout, pictures are made.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from oodml.data import Dataset, decode, load_dataset, load_images
from oodml.models.backbones.timm_models import ensure_torchvision

BATCH = 112
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "cub200.tar"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=SHARED if SHARED.exists() else None)
    parser.add_argument("--limit", type=int, default=1500, help="pictures to use")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12, help="batches of the DataLoader")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OODML_CACHE"] = folder
        ds = load_dataset("folder", root=options.root or made_pictures(Path(folder) / "pictures", options.limit))
        ds = ds.subset(np.linspace(0, len(ds) - 1, min(options.limit, len(ds))).astype(int))
        table = Table(title=f"Data: {len(ds)} pictures, {os.cpu_count()} cores, {options.device}", title_justify="left")
        for column in ("what", "ours", "peer", "ratio", "wanted"):
            table.add_column(column, justify="left" if column == "what" else "right")
        decoding(table, ds, Path(folder), options.rounds)
        batches(table, ds, options.device, options.rounds, options.batches)
        Console(width=126).print(table)


def made_pictures(root: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    for i in range(count):
        path = root / f"class{i % 20:02}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    return root


def cpu_seconds(action: Callable[[], object]) -> float:
    """Processor time of this process and its children: what a core must give, however busy the machine is."""
    before = os.times()
    action()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def decoding(table: Table, ds: Dataset, folder: Path, rounds: int) -> None:
    def pillow(keep: Callable[[np.ndarray], object]) -> Callable[[], object]:
        def loop() -> None:
            for i in range(len(ds)):
                picture = ds.image(i)
                width, height = picture.size
                factor = 256 / min(width, height)
                if factor < 1:
                    picture = picture.resize((round(width * factor), round(height * factor)), Image.Resampling.BILINEAR)
                keep(np.asarray(picture))

        return loop

    def pillow_to_file() -> None:
        with (folder / "loop.bin").open("wb") as file:
            pillow(lambda pixels: file.write(pixels.data))()

    def ours(workers: int) -> Callable[[], object]:
        return lambda: decode.decode_all(ds, folder / "pixels.bin", 256, workers, quiet=True)

    cores = len(os.sched_getaffinity(0))
    contestants = [ours(1), ours(cores), pillow_to_file, pillow(len)]
    times = np.array([[cpu_seconds(c) for c in contestants] for _ in range(rounds)])
    one, many, to_file, thrown_away = len(ds) / np.median(times, axis=0)
    unit = "img/cpu-s"
    add(table, "decode into the cache, 1 process, vs a Pillow loop that writes a file", one, to_file, 1.0, unit)
    add(table, f"the same, {cores} processes", many, to_file, None, unit)
    add(table, "1 process, vs a Pillow loop that keeps nothing", one, thrown_away, None, unit)
    for name in ("pixels.bin", "loop.bin"):
        (folder / name).unlink()


def batches(table: Table, ds: Dataset, device: str, rounds: int, count: int) -> None:
    images = load_images(ds, device=device, quiet=True)
    generator = torch.Generator(device=device).manual_seed(0)
    rng = np.random.default_rng(0)

    def rate(size: int, calls: int) -> float:
        wanted = [rng.choice(len(ds), size, replace=len(ds) < size) for _ in range(calls)]
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for rows in wanted:
            images.train_view(rows, generator)
        if device == "cuda":
            torch.cuda.synchronize()
        return size * calls / (time.perf_counter() - start)

    cuda = device == "cuda"
    rate(BATCH, 10 if cuda else 1)
    turns = [(rate(BATCH, 200 if cuda else 6), loader_rate(ds, count, device)) for _ in range(rounds)]
    mine, theirs = (max(t) for t in zip(*turns, strict=True))
    what = f"batch of {BATCH}, cache + augmentation at 224, vs DataLoader"
    add(table, what, mine, theirs, 10.0 if cuda else 2.0, "img/s")
    if cuda:
        for size in (BATCH, 1024):
            best = max(rate(size, 30_000 // size) for _ in range(rounds))
            add(table, f"augmentation at 224, calls of {size}, vs the wanted rate", best, 150_000, 1.0, "img/s")


class Decoding(torch.utils.data.Dataset):
    """What everybody writes first: decode and transform one picture at a time."""

    def __init__(self, ds: Dataset) -> None:
        ensure_torchvision()
        from torchvision.transforms import v2

        self.ds = ds
        self.transform = v2.Compose([
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.transform(self.ds.image(i))


def loader_rate(ds: Dataset, count: int, device: str) -> float:
    """Pictures a second once the workers run: what they prefetched before the clock started is not counted."""
    sampler = torch.utils.data.RandomSampler(range(len(ds)), replacement=True, num_samples=(count + 8) * BATCH)
    loader = torch.utils.data.DataLoader(
        Decoding(ds), batch_size=BATCH, sampler=sampler, num_workers=2, pin_memory=device == "cuda"
    )
    stream = iter(loader)
    for _ in range(4):
        next(stream)
    start = time.perf_counter()
    for _ in range(count):
        next(stream).to(device, non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return count * BATCH / (time.perf_counter() - start)


def add(table: Table, what: str, ours: float, peer: float, wanted: float | None, unit: str) -> None:
    ratio = ours / peer
    verdict = "" if wanted is None else f"≥ {wanted:g} {'ok' if ratio >= wanted else 'MISSED'}"
    table.add_row(what, f"{ours:,.0f} {unit}", f"{peer:,.0f} {unit}", f"{ratio:.2f}", verdict)


if __name__ == "__main__":
    main()
