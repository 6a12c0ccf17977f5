"""Speed of few-shot adaptation: all episodes at once against one after the other and against a plain loop.

    python benchmarks/few_shot.py [--device cpu|cuda] [--dim 128] [--shots 2] [--episodes 10] [--steps 100]

Made-up features of CUB's size (100 test classes of 59 images, 1,280 numbers, 1 + 8 views). The plain loop is what one
would write with the library's parts: nn.Linear, the margin loss with its distance miner, torch.optim.Adam, one episode
after the other. Times are of the steps alone, scaled to the published number of them; evaluation is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import oodml
from oodml.adaptation.adapt import SHOTS, STEPS
from oodml.adaptation.episodes import CachedViews
from oodml.adaptation.fine_tuning import Draws, Support, draw, fine_tune, last_layers, stacked_embedding
from oodml.evaluation import evaluate
from oodml.losses.margin import Margin
from oodml.methods import Context, Method, make_method
from oodml.models import make_backbone
from oodml.models.embedder import Embedder

CLASSES, IMAGES, FEATURES, VIEWS = 100, 59, 1280, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--shots", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device(options.device)

    count = CLASSES * IMAGES
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    table = torch.randn((1 + VIEWS) * count, FEATURES, generator=torch.Generator().manual_seed(0)).to(device)
    source = CachedViews(table, np.arange(count), np.arange(count), VIEWS)
    rng = np.random.default_rng(0)
    supports = [_support(labels, options.shots, rng) for _ in range(options.episodes)]
    seeds = list(range(options.episodes))
    embedder, method = _embedder(options.dim, device)
    embed, start = stacked_embedding(embedder, method), last_layers(embedder)

    def adapt(numbers: list[int]) -> None:
        draws = draw([supports[i] for i in numbers], options.steps, 112, [seeds[i] for i in numbers], device)
        list(fine_tune(embed, start, source.training([seeds[i] for i in numbers], draws), draws, 1.2, 1e-3))

    def plain() -> None:
        for i in seeds:
            draws = draw([supports[i]], options.steps, 112, [i], device)
            _plain_loop(source.training([i], draws), draws, start, device)

    ways: dict[str, Callable[[], None]] = {
        "all episodes at once": lambda: adapt(seeds),
        "one by one": lambda: [adapt([i]) for i in seeds],  # type: ignore[list-item]
        "plain loop": plain,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):  # in turns; the first warms up
        for name, way in ways.items():
            seconds = _timed(way, device)
            if turn:
                times[name].append(seconds)
    full = float(np.interp(options.shots, SHOTS, STEPS)) / options.steps
    shown = Table(title=f"{options.episodes} episodes of {options.shots} shots, d {options.dim}, {device.type}")
    for column in ("way", "seconds for the published steps", "of the plain loop"):
        shown.add_column(column)
    slowest = statistics.median(times["plain loop"])
    for name, each in times.items():
        median = statistics.median(each)
        shown.add_row(name, f"{median * full:.1f}", f"{median / slowest:.2f}")
    rows = embed({name: value[None] for name, value in start.items()}, table[None, :count])[0]
    scoring = _timed(lambda: evaluate(rows, labels, ["recall@1", "map@1000"]), device) * 2 * options.episodes
    shown.add_row("scores, before and after", f"{scoring:.1f}", "")
    Console().print(shown)


def _support(labels: np.ndarray, shots: int, rng: np.random.Generator) -> Support:
    rows = np.sort(np.concatenate([rng.choice(np.flatnonzero(labels == c), shots, False) for c in range(CLASSES)]))
    return Support(rows, labels[rows])


def _embedder(dim: int, device: torch.device) -> tuple[Embedder, Method]:
    method = make_method("margin")
    method.setup(Context(CLASSES, dim, FEATURES, 1))
    embedder = Embedder(make_backbone("tiny"), method.heads(FEATURES), FEATURES).to(device).requires_grad_(False)
    return embedder.eval(), method


def _plain_loop(inputs: Callable[[int], torch.Tensor], draws: Draws, start: dict, device: torch.device) -> None:
    weight, bias = start.values()
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0]).to(device)
    layer.load_state_dict({"weight": weight, "bias": bias})
    loss = Margin(learn_beta=False, miner=oodml.make_miner("distance"))
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3, fused=True)
    for step in range(draws.steps):
        loss(layer(inputs(step)[0]), draws.labels[step, 0]).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
