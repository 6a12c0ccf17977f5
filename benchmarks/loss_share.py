"""What a loss takes of a whole training step on one core, and what hand-written gradients saved of it.

    python benchmarks/loss_share.py                            # against the last revision with hand-written gradients
    python benchmarks/loss_share.py --only margin triplet
    python benchmarks/loss_share.py --revision HEAD~1          # against another revision of this package

A step is forward, loss with its miner, backward and Adam, with batch 112 and embeddings of 512 numbers. Two steps:
`head`, a linear layer on cached features of 1,280 numbers (those of tf_efficientnet_lite0), and `tiny`, that backbone
on images of 32 x 32. The steps with the loss of the other revision, with the loss of this one and without a loss (the
mean of the embeddings) take turns in one process; times are processor time, medians.

`share`: of the step with this loss, what the loss takes. `saved`: of the same step, what the other revision takes less.
Gradients are written by hand only where that saves more than a fifth: such a loss is marked.

On a GPU (ResNet50 in bf16, batch 112) a step takes 17 ms and a loss about 2 ms of launches, most of which overlap with
the backbone: no loss can save a fifth there.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

HAND_WRITTEN = "e5f1af1"
BATCH, DIM, CLASSES, FEATURES = 112, 512, 100, 1280
FIFTH = 0.2
COMBINATIONS = (("triplet", "all"), ("triplet", "hard"), ("contrastive", "lifted"))  # next to the default miners
Step = Callable[[], None]


def other_revision(revision: str, folder: Path) -> ModuleType:
    """`oodml.losses` of another revision, imported next to the current one."""
    root = Path(__file__).parents[1]
    packed = subprocess.run(["git", "archive", revision, "src/oodml"], cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    ours = take_modules()
    sys.path.insert(0, str(folder / "src"))
    import oodml.losses
    import oodml.miners

    oodml.losses.list_losses(), oodml.miners.list_miners()  # imports all their modules
    sys.path.pop(0)
    theirs = take_modules()["oodml.losses"]
    sys.modules.update(ours)
    assert str(theirs.__file__).startswith(str(folder))
    return theirs


def take_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "oodml"]
    return {name: sys.modules.pop(name) for name in names}


def make_step(kind: str, loss: nn.Module | None) -> Step:
    from oodml.models.backbones import make_backbone

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(BATCH) // 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "head":
            model: nn.Module = nn.Linear(FEATURES, DIM)
            inputs = torch.randn(BATCH, FEATURES, generator=generator)
        else:
            backbone = make_backbone("tiny")
            model = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, DIM))
            inputs = torch.rand(BATCH, 3, 32, 32, generator=generator)
    groups: list[Any] = [{"params": list(model.parameters())}]
    if loss is not None:
        groups += loss.param_groups(1e-5)  # type: ignore[operator]
    optimiser = torch.optim.Adam(groups, lr=1e-5, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        embeddings: Tensor = model(inputs)
        value = embeddings.mean() if loss is None else loss(embeddings, labels)
        value.backward()
        optimiser.step()

    return step


def medians(steps: list[Step], seconds: float) -> list[float]:
    """Milliseconds of processor time of each step; they take turns."""
    for step in steps:
        for _ in range(12):  # fills a memory of 1,024
            step()
    times: list[list[float]] = [[] for _ in steps]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[0]) < 10:
        for kept, step in zip(times, steps, strict=True):
            start = time.process_time()
            step()
            kept.append(time.process_time() - start)
    return [1e3 * statistics.median(kept) for kept in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default=HAND_WRITTEN, help="of this repository, to compare with")
    parser.add_argument("--only", nargs="+", default=[], help="these losses alone")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        other = other_revision(options.revision, Path(folder))
        import oodml.losses

        wanted = [(name, None) for name in oodml.losses.list_losses()] + list(COMBINATIONS)
        print(
            f"{'loss':<18}{'miner':<10}{'step':<6}{options.revision + ' ms':>12}{'ours ms':>9}{'share':>7}{'saved':>7}"
        )
        rows = []
        for name, miner in wanted:
            if options.only and name not in options.only:
                continue
            for kind in ("head", "tiny"):
                steps = [
                    make_step(kind, package.make_loss(name, num_classes=CLASSES, embedding_dim=DIM, miner=miner))
                    for package in (other, oodml.losses)
                ]
                before, now, without = medians([*steps, make_step(kind, None)], options.seconds)
                share, saved = 1 - without / now, 1 - before / now
                rows.append({"loss": name, "miner": miner, "step": kind, "before_ms": before, "now_ms": now})
                rows[-1] |= {"share": share, "saved": saved}
                mark = "  more than a fifth" if saved > FIFTH else ""
                line = f"{name:<18}{miner or '':<10}{kind:<6}{before:>12.2f}{now:>9.2f}{share:>7.0%}{saved:>7.0%}{mark}"
                print(line, flush=True)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
