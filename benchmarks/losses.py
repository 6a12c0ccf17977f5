"""Speed of every loss with its miner, forward and backward.

    python benchmarks/losses.py                      # CPU: ratio to pytorch-metric-learning in the same process
    python benchmarks/losses.py --device cuda        # GPU: milliseconds, eager and compiled, and gradients
    python benchmarks/losses.py --device cuda --gradients         # no times: gradients compiled against eager
    python benchmarks/losses.py --device cuda --profile margin    # the operations of one step of a loss
    python benchmarks/losses.py --host               # what the host does for a compiled loss, without a GPU

CPU: our step and the peer's take turns, so that other work on the machine affects both; the table shows medians and the
ratio of medians. `floor` is the smallest accepted ratio; the program exits with 1 if one is missed.

GPU: several processes compile, and each measures a loss as soon as it is compiled, one at a time, and prints its row.
Compiled in two ways that a user can choose, of which the better one counts: as in training, one launch per kernel, and
as CUDA graphs, one launch per pass but more bookkeeping. The times are those of the host and depend on its other work,
so all are measured twice more when everything is compiled and the host is quiet; the best time counts, and the rows
that were missed before are printed again. A loss that makes the host wait for the device, or whose gradient differs
from that on the CPU, counts as missed. The compiler's warnings are shown with `--warnings`.

Host: a compiled loss on a CPU, on a batch so small (16, d 16) that only the way to its kernels is left: guards, the
calls of torch, autograd. On a GPU with CUDA graphs that is most of its time.

`crossbatch:BASE` is the memory with another base loss, measured when it is full.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import multiprocessing
import os
import platform
import queue
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import oodml
from oodml.losses import loss_record
from oodml.methods.base import COMPILED_OBJECTIVE

DIM, CLASSES, MEMORY = 512, 256, 1024
HOST_BATCH, HOST_DIM = 16, 16  # next to no work
EAGER_MS, COMPILED_MS = 2.0, 1.0  # on a GPU
COMPILED: dict[str, dict[str, Any]] = {"launches": COMPILED_OBJECTIVE, "graphs": {"mode": "reduce-overhead"}}
ROUNDS = 3  # of measurements there: one at once, the others when everything is compiled
GRADIENT_ERROR = 0.01  # of the GPU's gradient; wrong ones are off by their whole length
Step = Callable[[], object]
Combination = tuple[str, str | None]
Row = dict[str, Any]

# loss, miner (None: its default) -> smallest accepted ratio to the peer at batch 112 and at batch 512; others: 0.9
FLOORS = {
    ("margin", None): (1.5, 5.0),
    ("triplet", None): (1.5, 5.0),
}
VARIABLE_SHAPE = {"all", "hard", "multisimilarity"}  # miners that may synchronise
CUBIC_PEERS = {"angular": 256}  # the largest batch whose cubic tensor a peer can hold (at 512: more than 10 GB)

# Where the peer's function is not ours to the letter.
NOTES = {
    "contrastive": "peer averages over terms that are not 0",
    "snr": "peer without the penalty on sums",
    "genlifted": "peer without the penalty on norms",
    "npair": "peer: NTXentLoss of inner products, T = 1; NPairsLoss pairs differently; no penalty on norms",
    "angular": "peer: AngularLoss + the N-pair part as above",
    "smoothap": "peer counts the anchor among its positives",
    "crossbatch": "peer averages over terms that are not 0",
}


class Sum(nn.Module):
    def __init__(self, *terms: nn.Module) -> None:
        super().__init__()
        self.terms = nn.ModuleList(terms)

    def forward(self, *arguments: Tensor | None) -> Tensor:
        return torch.stack([term(*arguments) for term in self.terms]).sum()


def peers() -> dict[Combination, Callable[[], tuple[nn.Module, nn.Module | None]]]:
    """The same loss in pytorch-metric-learning, as (loss, miner)."""
    from pytorch_metric_learning import distances, losses, miners

    weighted = miners.DistanceWeightedMiner
    dot = distances.DotProductSimilarity(normalize_embeddings=False)

    def npair() -> nn.Module:
        # NPairsLoss is another function: one pair per class, whose positives are the only negatives of the others.
        return losses.NTXentLoss(temperature=1, distance=dot)

    def memory(loss: nn.Module, miner: nn.Module | None) -> tuple[nn.Module, None]:
        return losses.CrossBatchMemory(loss, DIM, MEMORY, miner), None

    proxies = {"num_classes": CLASSES, "embedding_size": DIM}
    return {
        ("contrastive", None): lambda: (losses.ContrastiveLoss(), weighted()),
        ("triplet", None): lambda: (losses.TripletMarginLoss(margin=0.2), weighted()),
        ("triplet", "all"): lambda: (losses.TripletMarginLoss(margin=0.2), None),
        ("triplet", "hard"): lambda: (losses.TripletMarginLoss(margin=0.2), miners.BatchHardMiner()),
        ("triplet", "easy-positive"): lambda: (
            losses.TripletMarginLoss(margin=0.2),
            miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="semihard"),
        ),
        ("margin", None): lambda: (losses.MarginLoss(learn_beta=True, num_classes=CLASSES), weighted()),
        ("snr", None): lambda: (losses.TripletMarginLoss(margin=0.2, distance=distances.SNRDistance()), weighted()),
        ("multisimilarity", None): lambda: (losses.MultiSimilarityLoss(2, 40, 0.5), miners.MultiSimilarityMiner(0.1)),
        ("genlifted", None): lambda: (
            losses.GeneralizedLiftedStructureLoss(distance=distances.LpDistance(normalize_embeddings=False)),
            None,
        ),
        ("npair", None): lambda: (npair(), None),
        ("angular", None): lambda: (Sum(losses.AngularLoss(alpha=45), npair()), None),
        ("histogram", None): lambda: (losses.HistogramLoss(n_bins=64), None),
        ("arcface", None): lambda: (losses.ArcFaceLoss(**proxies, margin=28.6, scale=16), None),
        ("cosface", None): lambda: (losses.CosFaceLoss(**proxies), None),
        ("normsoftmax", None): lambda: (losses.NormalizedSoftmaxLoss(**proxies), None),
        ("proxynca", None): lambda: (losses.ProxyNCALoss(**proxies), None),
        ("proxyanchor", None): lambda: (losses.ProxyAnchorLoss(**proxies), None),
        ("softtriple", None): lambda: (losses.SoftTripleLoss(**proxies, centers_per_class=2), None),
        ("ntxent", None): lambda: (losses.NTXentLoss(), None),
        ("supcon", None): lambda: (losses.SupConLoss(), None),
        ("circle", None): lambda: (losses.CircleLoss(), None),
        ("smoothap", None): lambda: (losses.SmoothAPLoss(), None),
        ("crossbatch", None): lambda: memory(losses.ContrastiveLoss(), weighted()),
        ("crossbatch", "lifted"): lambda: memory(losses.ContrastiveLoss(), None),
        ("crossbatch:triplet", "hard"): lambda: memory(losses.TripletMarginLoss(margin=0.2), miners.BatchHardMiner()),
        ("crossbatch:multisimilarity", None): lambda: memory(
            losses.MultiSimilarityLoss(2, 40, 0.5), miners.MultiSimilarityMiner(0.1)
        ),
    }


def batch_of(size: int, device: str, seed: int = 0, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Two samples per class, classes overlapping as at the start of training."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) // 2
    centres = torch.randn(size // 2, dim, generator=generator)
    embeddings = 0.5 * centres[labels] + torch.randn(size, dim, generator=generator)
    return embeddings.to(device).requires_grad_(), labels.to(device)


def our_loss(name: str, miner: str | None, size: int, dim: int = DIM, **options: Any) -> nn.Module:
    name, _, base = name.partition(":")
    # The peer's memory includes the batch, ours does not: both have MEMORY references.
    options |= {"memory_size": MEMORY - size} if name == "crossbatch" else {}
    options |= {"base": base} if base else {}
    return oodml.make_loss(name, num_classes=CLASSES, embedding_dim=dim, miner=miner, **options)


def our_step(name: str, miner: str | None, size: int, device: str, compiled: dict[str, Any] | None = None) -> Step:
    embeddings, labels = batch_of(size, device)
    loss = our_loss(name, miner, size).to(device)
    call: Callable[[Tensor, Tensor], Tensor] = torch.compile(loss, **compiled) if compiled else loss

    def step() -> Tensor:
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        value = call(embeddings, labels)
        value.backward()
        return value

    return filled(step, name, size)


def peer_step(name: str, build: Callable[[], tuple[nn.Module, nn.Module | None]], size: int) -> Step:
    embeddings, labels = batch_of(size, "cpu")
    loss, miner = build()

    def step() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        loss(embeddings, labels, miner(embeddings, labels) if miner else None).backward()

    return filled(step, name, size)


def filled(step: Step, name: str, size: int) -> Step:
    """The step, after enough of them to fill a memory."""
    if name.startswith("crossbatch"):
        for _ in range(-(-MEMORY // size)):
            step()
    return step


def interleaved_medians(steps: list[Step], seconds: float) -> list[float]:
    """Milliseconds per step, each measured in turn until `seconds` have gone by (and five times at least)."""
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[0]) < 5:
        for kept, step in zip(times, steps, strict=True):
            start = time.perf_counter()
            step()
            kept.append(time.perf_counter() - start)
    return [1e3 * statistics.median(kept) for kept in times]


def shown_miner(name: str, miner: str | None) -> str:
    base = "contrastive" if name == "crossbatch" else name.rpartition(":")[2]
    return miner or loss_record(base).default_miner or "-"


def on_cpu(sizes: list[int], only: list[str], seconds: float) -> list[Row]:
    print(f"{'loss':<28}{'miner':<17}{'batch':>5}{'ours ms':>10}{'peer ms':>10}{'ratio':>8}{'floor':>7}")
    rows = []
    for (name, miner), build in peers().items():
        if only and name not in only:
            continue
        for size in sizes:
            if size > CUBIC_PEERS.get(name, size):
                continue
            steps = [our_step(name, miner, size, "cpu"), peer_step(name, build, size)]
            ours, theirs = interleaved_medians(steps, seconds)
            floor = FLOORS.get((name, miner), (0.9, 0.9))[size > 112]
            missed, shown = theirs / ours < floor, shown_miner(name, miner)
            end = "  MISSED" if missed else ""
            note = NOTES.get(name.partition(":")[0], "")
            print(
                f"{name:<28}{shown:<17}{size:>5}{ours:>10.2f}{theirs:>10.2f}{theirs / ours:>8.1f}{floor:>7}{end}",
                flush=True,
            )
            row = {"loss": name, "miner": shown, "batch": size, "ours_ms": ours, "peer_ms": theirs}
            rows.append(row | {"ratio": theirs / ours, "floor": floor, "missed": missed, "note": note})
    for name, note in NOTES.items():
        print(f"{name}: {note}")
    return rows


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def gpu_milliseconds(step: Step, seconds: float, device: str) -> float:
    """Milliseconds per step when steps follow one another, the median of five series."""
    for _ in range(5):
        step()
    wait_for(device)
    times = []
    for _ in range(5):
        start, steps = time.perf_counter(), 0
        while steps < 10 or time.perf_counter() - start < seconds / 5:
            step()
            steps += 1
        wait_for(device)
        times.append((time.perf_counter() - start) / steps)
    return 1e3 * statistics.median(times)


def host_sync(step: Step, exempt: bool) -> str:
    """ "none", or what made the host wait for the device."""
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return "exempt" if exempt else f"FAILED: {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def gradient_of(loss: nn.Module, size: int, device: str, compiled: bool = False) -> Tensor:
    """The gradient at the third batch; where there is a memory, at the third after it is full."""
    call = torch.compile(loss, dynamic=False) if compiled else loss
    torch.manual_seed(1)
    for seed in range(3 + -(-getattr(loss, "memory_size", 0) // size)):
        embeddings, labels = batch_of(size, device, seed)
        call(embeddings, labels).backward()
    assert embeddings.grad is not None
    return embeddings.grad.cpu()


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


def gradient_error(name: str, miner: str | None, size: int, device: str) -> float:
    """How far the gradient on the GPU is from the CPU's, relative to its length; both with the same random numbers."""
    found = []
    for each in (device, "cpu"):
        torch.manual_seed(0)  # proxies
        loss = our_loss(name, miner, size, generator=torch.Generator().manual_seed(0)).to(each)
        found.append(gradient_of(loss, size, each))
    return relative_error(*found)


def compile_many() -> None:
    torch._dynamo.config.recompile_limit = 64  # every loss shares the code of Loss.forward


def compiled_gradients(size: int, only: list[str], device: str) -> list[Row]:
    """How far the gradient of every compiled loss is from the eager one's, with the same random numbers."""
    compile_many()
    torch._inductor.config.fallback_random = True  # torch's own random numbers, at the cost of a kernel each
    rows = []
    for name, miner in gpu_combinations(only):
        found = []
        for compiled in (True, False):
            torch.manual_seed(0)  # proxies
            found.append(gradient_of(our_loss(name, miner, size).to(device), size, device, compiled))
        error = relative_error(*found)
        row = {"loss": name, "miner": shown_miner(name, miner), "gradient_error": error}
        rows.append(row | {"missed": not error < GRADIENT_ERROR})
        end = "  MISSED" if rows[-1]["missed"] else ""
        print(f"{name:<28}{row['miner']:<17}{error:>14.1e}{end}", flush=True)
    return rows


def host_times(only: list[str], seconds: float) -> list[Row]:
    """Microseconds a compiled loss takes where there is next to nothing to compute; medians."""
    torch.set_num_threads(1)
    print(f"{'loss':<28}{'miner':<17}{'forth, us':>12}{'back, us':>12}")
    rows = []
    for name, miner in gpu_combinations(only):
        embeddings, labels = batch_of(HOST_BATCH, "cpu", dim=HOST_DIM)
        loss = our_loss(name, miner, HOST_BATCH, HOST_DIM)
        call = torch.compile(loss)
        for _ in range(-(-MEMORY // HOST_BATCH) + 20):  # a memory is full then
            call(embeddings, labels).backward()
        times: list[tuple[float, float]] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            embeddings.grad = None
            loss.zero_grad(set_to_none=True)
            start = time.perf_counter()
            value = call(embeddings, labels)
            middle = time.perf_counter()
            value.backward()
            times.append((middle - start, time.perf_counter() - middle))
        forth, back = (1e6 * statistics.median(part) for part in zip(*times, strict=True))
        rows.append({"loss": name, "miner": shown_miner(name, miner), "forth_us": forth, "back_us": back})
        rows[-1]["missed"] = False  # nothing is asked of these
        print(f"{name:<28}{shown_miner(name, miner):<17}{forth:>12.0f}{back:>12.0f}", flush=True)
        torch.compiler.reset()
    return rows


def gpu_combinations(only: list[str]) -> list[Combination]:
    found: list[Combination] = [(name, None) for name in oodml.list_losses()]
    found += [
        ("triplet", m) for m in oodml.list_miners() if m not in ("distance", "npair", "lifted", "multisimilarity")
    ]
    found += [("contrastive", m) for m in ("npair", "lifted", "multisimilarity")]
    found += [("crossbatch:multisimilarity", None), ("crossbatch:triplet", "hard")]
    return [(name, miner) for name, miner in found if not only or name in only]


def gpu_worker(
    share: list[Combination], size: int, seconds: float, device: str, warn: bool, ready: Any, turn: Any, results: Any
) -> None:
    """Compile a share of the combinations next to the other workers; measure each at once, and all again at the end."""
    torch.set_num_threads(1)
    compile_many()
    if not warn:
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
    measured = []
    for name, miner in share:
        row: Row = {"loss": name, "miner": shown_miner(name, miner), "batch": size, "error": None}
        row |= {"gradient_error": gradient_error(name, miner, size, device), "launch_us": [], "rounds": {}}
        ways = {"eager": our_step(name, miner, size, device)}
        for way, options in COMPILED.items():
            try:
                compiled = our_step(name, miner, size, device, compiled=options)
                compiled()
                ways[way] = compiled
            except Exception as error:  # the table shows it, and the others are still measured
                row["error"] = f"{way}: {error!r}"
        row["host_sync"] = host_sync(ways["eager"], row["miner"] in VARIABLE_SHAPE) if device == "cuda" else "-"
        measured.append((row, ways))
        with turn:
            measure(row, ways, seconds, device)
        results.put(judged(row))
    for _ in range(ROUNDS - 1):
        ready.wait()  # until every worker has compiled, or measured, its share
        with turn:
            for row, ways in measured:
                measure(row, ways, seconds, device)
    for row, _ in measured:
        results.put(judged(row))


def measure(row: Row, ways: dict[str, Step], seconds: float, device: str) -> None:
    row["launch_us"].append(launch_microseconds(device))
    for way, step in ways.items():
        row["rounds"].setdefault(way, []).append(gpu_milliseconds(step, seconds, device))


def launch_microseconds(device: str) -> float:
    """What the host takes now to launch one kernel."""
    x = torch.zeros(1, device=device)
    start = time.perf_counter()
    for _ in range(2000):
        x.neg_()
    taken = time.perf_counter() - start
    wait_for(device)
    return 1e6 * taken / 2000


def judged(row: Row) -> Row:
    """A copy of the row with its best times, and whether anything was missed."""
    times = {way: min(rounds) for way, rounds in row["rounds"].items()}
    compiled = min((times[way] for way in COMPILED if way in times), default=math.inf)
    slow = times["eager"] > EAGER_MS or compiled > COMPILED_MS
    wrong = not row["gradient_error"] < GRADIENT_ERROR
    return copy.deepcopy(row) | {"ms": times, "missed": slow or wrong or row["host_sync"].startswith("FAILED")}


def on_gpu(
    size: int, only: list[str], seconds: float, workers: int, warn: bool = False, device: str = "cuda"
) -> list[Row]:
    combinations = gpu_combinations(only)
    workers = min(workers, len(combinations))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the workers are the parallelism
    context = multiprocessing.get_context("spawn")
    ready, turn, results = context.Barrier(workers), context.Lock(), context.Queue()
    shared = size, seconds, device, warn, ready, turn, results
    processes = [context.Process(target=gpu_worker, args=(combinations[i::workers], *shared)) for i in range(workers)]
    for process in processes:
        process.start()
    titles = f"{'eager ms':>10}{'compiled ms':>13}{'as graphs':>11}{'gradient off':>14}{'a launch, us':>14}  host sync"
    print(f"{'loss':<28}{'miner':<17}{titles}", flush=True)
    first: dict[tuple[str, str], Row] = {}
    rows: list[Row] = []
    while len(rows) < len(combinations):
        row = next_row(results, processes)
        known = first.get((row["loss"], row["miner"]))
        if known is None:
            first[row["loss"], row["miner"]] = row
            print_row(row)
            continue
        rows.append(row)
        if known["missed"]:
            print_row(row, "  best of all rounds")
    for process in processes:
        process.join()
    return rows


def next_row(results: Any, processes: list[Any]) -> Row:
    """The next row of a worker; raise if one has failed."""
    while True:
        try:
            return results.get(timeout=5)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                raise SystemExit("A process that measures has failed; see its error above.") from None


def print_row(row: Row, note: str = "") -> None:
    times = {way: f"{row['ms'][way]:.2f}" if way in row["ms"] else "failed" for way in ("eager", *COMPILED)}
    print(
        f"{row['loss']:<28}{row['miner']:<17}{times['eager']:>10}{times['launches']:>13}{times['graphs']:>11}"
        f"{row['gradient_error']:>14.1e}{min(row['launch_us']):>14.1f}  {row['host_sync']}"
        f"{'  MISSED' if row['missed'] else ''}{note}{'  ' + row['error'] if row['error'] else ''}",
        flush=True,
    )


class Counted(TorchDispatchMode):
    """Counts the operations that reach the dispatcher; on a GPU each costs the host some microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations[str(function)] += 1
        return function(*args, **(kwargs or {}))


def profile(name: str, device: str, size: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    step = our_step(name, None, size, device)
    step()
    with Counted() as counted:
        step()
    print(f"{sum(counted.operations.values())} operations: {dict(counted.operations.most_common())}")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as recorded:
        step()
    order = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    print(recorded.key_averages().table(sort_by=order, row_limit=30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, nargs="+", default=[112, 512])
    parser.add_argument("--only", nargs="+", default=[], help="these losses alone")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each comparison")
    parser.add_argument("--threads", type=int, help="CPU threads; fewer than cores where others use the machine")
    parser.add_argument("--profile", metavar="LOSS", help="show the operations of a step of this loss")
    parser.add_argument("--gradients", action="store_true", help="compare gradients, compiled and eager")
    parser.add_argument("--host", action="store_true", help="what the host does for compiled losses, on a CPU")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 4), help="processes that compile")
    parser.add_argument("--warnings", action="store_true", help="show the compiler's warnings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table here")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.profile:
        profile(options.profile, options.device, options.batch[0])
        return
    if options.host:
        machine = platform.machine()
        rows = host_times(options.only, options.seconds)
    elif options.gradients:
        machine = options.device
        rows = compiled_gradients(options.batch[0], options.only, options.device)
    elif options.device == "cuda":
        machine = torch.cuda.get_device_name()
        rows = on_gpu(options.batch[0], options.only, options.seconds, options.workers, options.warnings)
    else:
        machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
        rows = on_cpu(options.batch, options.only, options.seconds)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "torch": torch.__version__, "rows": rows}, indent=1))
    raise SystemExit(1 if any(row["missed"] for row in rows) else 0)


if __name__ == "__main__":
    main()
