"""Speed of distances and split construction, beside the usual route through `scipy.linalg.sqrtm`.

    python benchmarks/splits.py            # everything, about ten minutes (the peer takes most of it)
    python benchmarks/splits.py --quick    # without the runs of SOP's size

Works on the CPU: the matrices are small, or their eigenvalues are the bottleneck.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import scipy.linalg

import oodml

DIMS = 2048
MOST_MEMORY = 8  # GB, at SOP's size
SOP_CLASSES, SOP_IMAGES = (11_318, 11_316), 120_053


def usual_route(a: np.ndarray, b: np.ndarray) -> float:
    """FID as it is commonly computed: covariances, the root of their product, its real part."""
    root = scipy.linalg.sqrtm(np.cov(a, rowvar=False) @ np.cov(b, rowvar=False))
    apart = a.mean(axis=0) - b.mean(axis=0)
    return float(apart @ apart + a.var(axis=0, ddof=1).sum() + b.var(axis=0, ddof=1).sum() - 2 * np.trace(root).real)


def clustered(classes: int, images: int, groups: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features with structure: super-groups of classes, a falling spectrum, images around their class."""
    rng = np.random.default_rng(seed)
    spectrum = (np.arange(1, DIMS + 1) ** -0.5).astype(np.float32)
    group = rng.standard_normal((groups, DIMS), dtype=np.float32)
    centre = group[rng.integers(0, groups, classes)] + rng.standard_normal((classes, DIMS), dtype=np.float32)
    labels = np.sort(np.concatenate([np.arange(classes), rng.integers(0, classes, images - classes)]))
    features = np.empty((images, DIMS), dtype=np.float32)
    for start in range(0, images, 8192):
        rows = slice(start, start + 8192)
        noise = rng.standard_normal((len(labels[rows]), DIMS), dtype=np.float32)
        features[rows] = (centre[labels[rows]] + 0.5 * noise) * spectrum
    return features, labels


def seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def compare(name: str, sizes: tuple[int, int], wanted: float, repeats: int, peer_repeats: int) -> None:
    features, _ = clustered(sum(sizes), sum(sizes), groups=20)
    a, b = features[: sizes[0]].astype(np.float64), features[sizes[0] :].astype(np.float64)
    oodml.fid(a, b)
    ours = seconds(lambda: oodml.fid(a, b), repeats)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sqrtm complains about singular matrices, which class means always give
        peer = seconds(lambda: usual_route(a, b), peer_repeats)
        apart = abs(oodml.fid(a, b) / usual_route(a, b) - 1) if sizes[0] > DIMS else float("nan")
    row(name, f"{ours * 1e3:.1f} ms", f"{peer:.1f} s", f"{peer / ours:.0f}×", f"≥ {wanted:.0f}×", peer / ours >= wanted)
    if apart == apart:
        print(f"    relative difference of the two values: {apart:.1e}")


def progression(name: str, classes: int, images: int, limit: float, repeats: int) -> None:
    features, labels = clustered(classes, images, groups=max(10, classes // 100))
    names = [f"{i:05d}" for i in range(classes)]
    steps = []

    def build() -> None:
        splits = oodml.build_splits(features, labels, class_names=names, reverse=True)
        steps.append(len(splits.progression))

    before = time.process_time()
    took = seconds(build, repeats)
    cpu = (time.process_time() - before) / repeats
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    met = took <= limit and memory <= MOST_MEMORY
    name = f"{name}, {cpu:.1f} s of CPU"
    row(f"{name} ({steps[-1]} steps)", f"{took:.2f} s", f"{memory:.1f} GB peak", "", f"≤ {limit:.0f} s", met)


def row(name: str, ours: str, peer: str, ratio: str, wanted: str, met: bool) -> None:
    print(f"{name:<70} {ours:>10} {peer:>14} {ratio:>8} {wanted:>9}  {'met' if met else 'MISSED'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the runs of SOP's size")
    quick = parser.parse_args().quick
    print(f"{'what':<70} {'oodml':>10} {'sqrtm':>14} {'ratio':>8} {'wanted':>9}")
    progression("progression, CUB's size: swap+reverse+removal", 200, 11_788, limit=3, repeats=3)
    compare(f"FID of 100 + 100 class means, {DIMS}-d", (100, 100), 500, repeats=9, peer_repeats=1)
    if not quick:
        progression("progression, SOP's size", sum(SOP_CLASSES), SOP_IMAGES, limit=300, repeats=1)
        compare(f"FID of 11,318 + 11,316 class means, {DIMS}-d", SOP_CLASSES, 4, repeats=2, peer_repeats=1)


if __name__ == "__main__":
    main()
