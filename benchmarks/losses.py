"""Speed of every objective with its miner, forward and backward.

    python benchmarks/losses.py                      # CPU: ratio to pytorch-metric-learning in the same process
    python benchmarks/losses.py --device cuda        # GPU: milliseconds, eager and compiled; fails on a host sync
    python benchmarks/losses.py --device cuda --profile margin    # what one objective's step is made of

Ours and the peer's step take turns, so that whatever else the machine does falls on both; the table shows medians and
the ratio of medians. `floor` is the ratio that must hold; the program exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import oodml
from oodml.losses import loss_record

DIM, CLASSES = 512, 256
Step = Callable[[], object]

# objective, miner (None: its default) -> ratio to the peer that must hold at batch 112 and at batch 512
FLOORS = {
    ("margin", None): (3.0, 10.0),
    ("triplet", None): (3.0, 10.0),
    ("triplet", "all"): (3.0, 3.0),
    ("snr", None): (0.9, 20.0),
    ("histogram", None): (0.9, 20.0),
    ("multisimilarity", None): (1.5, 1.5),
}
VARIABLE_SHAPE = {"all", "hard", "multisimilarity"}  # miners that may synchronise


class Sum(nn.Module):
    def __init__(self, *terms: nn.Module) -> None:
        super().__init__()
        self.terms = nn.ModuleList(terms)

    def forward(self, *arguments: Tensor | None) -> Tensor:
        return torch.stack([term(*arguments) for term in self.terms]).sum()


def peers() -> dict[tuple[str, str | None], Callable[[], tuple[nn.Module, nn.Module | None]]]:
    """The same objective in pytorch-metric-learning, as (loss, miner)."""
    from pytorch_metric_learning import distances, losses, miners

    weighted = miners.DistanceWeightedMiner
    dot = distances.DotProductSimilarity(normalize_embeddings=False)

    def npair() -> nn.Module:
        # NPairsLoss is another function: one pair a class, whose positives are the only negatives of the others.
        return losses.NTXentLoss(temperature=1, distance=dot)

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
    }


def batch_of(size: int, device: str) -> tuple[Tensor, Tensor]:
    """Two samples a class, classes overlapping as at the start of training."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) // 2
    centres = torch.randn(size // 2, DIM, generator=generator)
    embeddings = 0.5 * centres[labels] + torch.randn(size, DIM, generator=generator)
    return embeddings.to(device).requires_grad_(), labels.to(device)


def our_step(name: str, miner: str | None, size: int, device: str, compiled: bool = False) -> Step:
    embeddings, labels = batch_of(size, device)
    loss: Callable[[Tensor, Tensor], Tensor]
    loss = oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM, miner=miner).to(device)
    call = torch.compile(loss) if compiled else loss

    def step() -> Tensor:
        value = call(embeddings, labels)
        value.backward()
        return value

    return step


def peer_step(build: Callable[[], tuple[nn.Module, nn.Module | None]], size: int) -> Step:
    embeddings, labels = batch_of(size, "cpu")
    loss, miner = build()
    return lambda: loss(embeddings, labels, miner(embeddings, labels) if miner else None).backward()


def interleaved_medians(steps: list[Step], seconds: float) -> list[float]:
    """Milliseconds a step, each measured in turn until `seconds` have gone by (and five times at least)."""
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


def on_cpu(sizes: list[int], only: list[str], seconds: float) -> bool:
    print(f"{'objective':<16}{'miner':<17}{'batch':>5}{'ours ms':>10}{'peer ms':>10}{'ratio':>8}{'floor':>7}")
    passed = True
    for (name, miner), build in peers().items():
        if only and name not in only:
            continue
        for size in sizes:
            steps = [our_step(name, miner, size, "cpu"), peer_step(build, size)]
            ours, theirs = interleaved_medians(steps, seconds)
            floor = FLOORS.get((name, miner), (0.9, 0.9))[size > 112]
            verdict = "" if theirs / ours >= floor else "  MISSED"
            passed &= not verdict
            shown = miner or loss_record(name).default_miner or "-"
            print(f"{name:<16}{shown:<17}{size:>5}{ours:>10.2f}{theirs:>10.2f}{theirs / ours:>8.1f}{floor:>7}{verdict}")
    return passed


def gpu_milliseconds(step: Step, repeats: int = 50) -> float:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / repeats)
    return 1e3 * statistics.median(times)


def assert_no_sync(step: Step) -> None:
    """Raises where a step makes the host wait for the device."""
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_gpu(size: int, only: list[str], eager_limit: float = 2.0, compiled_limit: float = 1.0) -> bool:
    combinations = [(name, None) for name in oodml.list_losses()]
    combinations += [("triplet", m) for m in oodml.list_miners() if m not in ("npair", "lifted", "multisimilarity")]
    combinations += [("contrastive", m) for m in ("npair", "lifted", "multisimilarity")]
    print(f"{'objective':<16}{'miner':<17}{'eager ms':>10}{'compiled ms':>13}{'host sync':>11}")
    passed = True
    for name, miner in combinations:
        if only and name not in only:
            continue
        shown = miner or loss_record(name).default_miner or "-"
        eager, compiled = (our_step(name, miner, size, "cuda", compiled) for compiled in (False, True))
        sync = "none"
        try:
            assert_no_sync(eager)
        except RuntimeError as error:
            sync = "exempt" if shown in VARIABLE_SHAPE else f"FAILED: {error}"
        eager_ms, compiled_ms = gpu_milliseconds(eager), gpu_milliseconds(compiled)
        slow = eager_ms > eager_limit or compiled_ms > compiled_limit
        passed &= not slow and not sync.startswith("FAILED")
        print(f"{name:<16}{shown:<17}{eager_ms:>10.2f}{compiled_ms:>13.2f}{sync:>11}{'  MISSED' if slow else ''}")
        torch.compiler.reset()
    return passed


def profile(name: str, device: str, size: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    step = our_step(name, None, size, device)
    step()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as recorded:
        step()
    order = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    print(recorded.key_averages().table(sort_by=order, row_limit=30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, nargs="+", default=[112, 512])
    parser.add_argument("--only", nargs="+", default=[], help="these objectives alone")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each comparison")
    parser.add_argument("--threads", type=int, help="CPU threads; fewer than cores where others use the machine")
    parser.add_argument("--profile", metavar="OBJECTIVE", help="show what a step of this objective is made of")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.profile:
        profile(options.profile, options.device, options.batch[0])
        return
    if options.device == "cuda":
        passed = on_gpu(options.batch[0], options.only)
    else:
        passed = on_cpu(options.batch, options.only, options.seconds)
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
