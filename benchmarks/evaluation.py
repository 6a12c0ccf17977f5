"""Retrieval metrics against pytorch-metric-learning's AccuracyCalculator (with faiss-cpu), and against bare hardware.

    python benchmarks/evaluation.py                  60,502 × 128 and 12,000 × 128 on the CPU, two threads
    python benchmarks/evaluation.py --device cuda    60,502 × 512: neighbours against a bare product + top-k
    python benchmarks/evaluation.py --clustering     k-means as well (benchmarks/kmeans.py)
    python benchmarks/evaluation.py --shortcuts      whole evaluations without the shortcuts that cost the most code

Both sides rank 1,000 neighbours a query and run interleaved; the best of `--repeats` counts. Ours returns recall at
1, 10, 100 and 1000, R-precision and MAP@R; the peer precision@1, R-precision and MAP@R (it has no recall@k). The points
are noisy classes on the unit sphere, as many and as large as those of SOP's test set.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from oodml.evaluation import evaluate, find_neighbours, kmeans
from oodml.evaluation._symmetric import SymmetricSearch

METRICS = ["recall@1", "recall@10", "recall@100", "recall@1000", "r-precision", "map@r"]
K = 1000
SIZES = {60_502: (11_316, 3.0), 12_000: (2_400, 2.5)}  # rows: classes, ratio to reach


def sphere_classes(n: int, classes: int, d: int) -> tuple[Tensor, Tensor]:
    """n unit vectors around random directions and their classes, each of which has two members or more."""
    generator = torch.Generator().manual_seed(0)
    rest = torch.randint(0, classes, (n - 2 * classes,), generator=generator)
    labels = torch.cat([torch.arange(classes).repeat(2), rest])
    x = torch.randn(classes, d, generator=generator)[labels] + 1.2 * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(x, dim=1), labels


def best_of(repeats: int, *runs: Callable[[], object]) -> list[float]:
    """Seconds of the fastest of `repeats` of each run, interleaved."""
    spent: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, times in zip(runs, spent, strict=True):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return [min(times) for times in spent]


def on_cpu(sizes: list[int], repeats: int, threads: int) -> None:
    import faiss
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import FaissKNN

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    peer = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k=K,
        device=torch.device("cpu"),
        knn_func=FaissKNN(),
    )
    print(f"{threads} threads, best of {repeats}, interleaved")
    print(f"{'set':>14} {'classes':>8} {'oodml s':>8} {'peer s':>8} {'ratio':>6} {'aim':>5}")
    for n in sizes:
        classes, aim = SIZES[n]
        x, labels = sphere_classes(n, classes, 128)
        scores, theirs = evaluate(x, labels, METRICS), peer.get_accuracy(x, labels)
        assert abs(scores["map@r"] - theirs["mean_average_precision_at_r"]) < 1e-4, "both must measure the same"
        ours, others = best_of(repeats, partial(evaluate, x, labels, METRICS), partial(peer.get_accuracy, x, labels))
        print(f"{n:>8,} × 128 {classes:>8,} {ours:>8.2f} {others:>8.2f} {others / ours:>6.2f} {aim:>5}", flush=True)


def shortcuts(sizes: list[int], repeats: int) -> None:
    """Processor time on one thread of whole evaluations, as they are and without one shortcut."""
    torch.set_num_threads(1)
    off = {
        "symmetric search": mock.patch.object(SymmetricSearch, "suits", lambda search, memory: False),
        "k-means by moved centres": mock.patch.object(kmeans, "_reassign", lambda x, new, *_: kmeans._nearest(x, new)),
    }
    requested = {"ranked to 1,000": METRICS, "ranked to 10": ["recall@1", "recall@10", "map@r"]}
    print(f"{'set':>14} {'metrics':>20} {'seconds':>8}   without one shortcut")
    for n in sizes:
        x, labels = sphere_classes(n, SIZES[n][0], 128)
        for title, names in {**requested, "ranked to 10, nmi": [*requested["ranked to 10"], "nmi"]}.items():
            run = partial(evaluate, x, labels, names)
            whole = min(processor_seconds(run) for _ in range(repeats))
            ratios = []
            for name, patch in off.items():
                with patch:
                    ratios.append(f"{name} {min(processor_seconds(run) for _ in range(repeats)) / whole:.2f}×")
            print(f"{n:>8,} × 128 {title:>20} {whole:>8.2f}   {', '.join(ratios)}", flush=True)


def processor_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def bare_search(x: Tensor, k: int, rows: int = 8192) -> Tensor:
    """The least that a search must do: a product and a top-k for each block, no exclusion, no order among ties."""
    norms = x.square().sum(1)
    found = torch.empty(len(x), k, dtype=torch.int64, device=x.device)
    for start in range(0, len(x), rows):
        work = torch.addmm(norms, x[start : start + rows], x.T, alpha=-2)
        found[start : start + rows] = work.topk(k, dim=1, largest=False).indices
    return found


def on_gpu(repeats: int) -> None:
    x, labels = (each.cuda() for each in sphere_classes(60_502, 11_316, 512))
    everything = [
        *METRICS,
        "map@c",
        "map@1000",
        "map@c:reference",
        "map@1000:reference",
        "precision@c",
        "precision@1000",
    ]
    runs = [
        lambda: bare_search(x, K),
        lambda: find_neighbours(x, None, K),
        lambda: evaluate(x, labels, everything),
    ]
    for run in runs:
        run()
    torch.cuda.reset_peak_memory_stats()
    bare, ours, scores = best_of(repeats, *runs)
    print(f"{torch.cuda.get_device_name()}: 60,502 × 512, k = {K}, best of {repeats}, interleaved")
    print(f"bare product + top-k     {1e3 * bare:8.1f} ms")
    print(f"exact neighbours         {1e3 * ours:8.1f} ms   {ours / bare:.2f}× the bare search (at most 1.5)")
    print(f"all retrieval metrics    {1e3 * scores:8.1f} ms   (at most 500)")
    print(f"peak memory              {torch.cuda.max_memory_allocated() / 2**30:8.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rows", type=int, choices=list(SIZES), action="append", help="default: both sizes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clustering", action="store_true", help="run benchmarks/kmeans.py afterwards")
    parser.add_argument("--shortcuts", action="store_true", help="only measure what the shortcuts save")
    args = parser.parse_args()
    if args.shortcuts:
        shortcuts(args.rows or [12_000], args.repeats)
    elif args.device == "cuda":
        on_gpu(args.repeats)
    else:
        on_cpu(args.rows or list(SIZES), args.repeats, args.threads)
    if args.clustering:
        script = Path(__file__).with_name("kmeans.py")
        subprocess.run([sys.executable, str(script), "--device", args.device], check=True)


if __name__ == "__main__":
    main()
