"""Two dimensions are enough to see what ρ-regularisation does (Roth et al. 2020, figure 6; supplement G, figure 12).

    python examples/toy_rho.py [--lines vertical|diagonal] [--seeds 10] [--p-switch 0.7] [--out toy_rho.png]

Four training lines can be told apart along one direction of the plane, four test lines only along the other. A small
network that embeds points on the unit circle needs one direction for its training classes and drops the other: the
test lines fall on one point. Pushing samples of a class apart now and then makes it keep both. The picture shows the
data, the test lines on the circle without and with regularisation, and the spectra of the training embeddings; the
table counts, over the seeds, the pairs of test lines that are as far apart as the loss wants classes to be.

Network, data, loss, margin, iterations, batch and learning rate are the paper's, with random triplets. Its p_switch of
.001 shows no effect here: pull and push are equally strong, so the push within a class wins from one half on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import oodml

LINES, SAMPLES, HIDDEN = 4, 15, 30
ITERATIONS, BATCH, LEARNING_RATE, MARGIN = 200, 24, 0.03, 0.1
P_SWITCH = 0.7
SHORT = 0.3  # half the length of a test line, so that all of them lie between the middle training lines


class Lines(NamedTuple):
    """Points (4 · 15, 2) on four parallel segments, and which one each lies on."""

    points: Tensor
    labels: Tensor


class Outcome(NamedTuple):
    """Test points on the unit circle, distances of the six pairs of test lines, the spectrum of training embeddings."""

    test: Tensor
    distances: Tensor
    spectrum: np.ndarray

    @property
    def apart(self) -> int:
        """Pairs of test lines whose centres are at least the loss's margin apart."""
        return int((self.distances >= MARGIN).sum())


def draw_lines(kind: str) -> tuple[Lines, Lines]:
    """Training lines, and short test lines at right angles to them; "diagonal" turns all of it by 45°."""
    along, across = (
        torch.linspace(-1, 1, SAMPLES).repeat(LINES),
        torch.linspace(-1, 1, LINES).repeat_interleave(SAMPLES),
    )
    labels = torch.arange(LINES).repeat_interleave(SAMPLES)
    train, test = torch.stack([across, along], dim=1), torch.stack([SHORT * along, across], dim=1)
    half = 0.5**0.5
    turn = torch.tensor([[half, half], [-half, half]]) if kind == "diagonal" else torch.eye(2)
    return Lines(train @ turn, labels), Lines(test @ turn, labels)


def fit(train: Lines, test: Lines, p_switch: float, seed: int) -> Outcome:
    """Train the network with the contrastive loss, and look at the test lines."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2)]
        network = nn.Sequential(*layers)
    miner = {"name": "rho", "base": "random", "p_switch": p_switch} if p_switch else "random"
    loss = oodml.make_loss("contrastive", margin=MARGIN, miner=miner, generator=generator)
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(ITERATIONS):
        chosen = torch.randperm(len(train.points), generator=generator)[:BATCH]
        value = loss(network(train.points[chosen]), train.labels[chosen])
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    with torch.no_grad():
        seen, unseen = (F.normalize(network(lines.points), dim=1) for lines in (train, test))
    centres = torch.stack([unseen[test.labels == line].mean(0) for line in range(LINES)])
    spectrum = torch.linalg.svdvals(seen)
    return Outcome(unseen, torch.pdist(centres), (spectrum / spectrum.sum()).numpy())


def compare(kind: str, p_switch: float, seeds: int) -> dict[str, list[Outcome]]:
    """Both losses on every seed."""
    train, test = draw_lines(kind)
    ways = {"contrastive": 0.0, "R-contrastive": p_switch}
    return {name: [fit(train, test, p, seed) for seed in range(seeds)] for name, p in ways.items()}


def draw(kind: str, outcomes: dict[str, list[Outcome]], path: Path) -> None:
    """The four panels of figure 12: data, both embeddings of the seed on which they differ most, spectra."""
    import matplotlib.pyplot as plt

    train, test = draw_lines(kind)
    plain, regularised = outcomes.values()
    seed = int(np.argmax([b.apart - a.apart for a, b in zip(plain, regularised, strict=True)]))
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.5), layout="constrained")
    axes[0].scatter(*train.points.T, c=train.labels, cmap="tab10", marker="o", label="train")
    axes[0].scatter(*test.points.T, c=test.labels + 4, cmap="tab10", marker="x", label="test")
    axes[0].set_title("training (o) and test (x) lines")
    for axis, (name, runs) in zip(axes[1:3], outcomes.items(), strict=True):
        axis.add_patch(plt.Circle((0, 0), 1, fill=False, color="0.8"))
        axis.scatter(*runs[seed].test.T, c=test.labels, cmap="tab10")
        axis.set_title(f"test lines, {name}: {runs[seed].apart} of 6 pairs apart")
        axis.set_aspect("equal")
    for place, (name, runs) in enumerate(outcomes.items()):
        mean = np.mean([run.spectrum for run in runs], axis=0)
        axes[3].bar(np.arange(2) + 0.4 * place, mean, width=0.4, label=name)
    axes[3].set_xticks([0.2, 1.2], ["first", "second"])
    axes[3].set_title(f"singular values, mean of {len(plain)} seeds")
    axes[3].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", choices=("vertical", "diagonal"), default="vertical")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--p-switch", type=float, default=P_SWITCH)
    parser.add_argument("--out", type=Path, default=Path("toy_rho.png"))
    options = parser.parse_args()
    outcomes = compare(options.lines, options.p_switch, options.seeds)
    for name, runs in outcomes.items():
        apart, second = sum(run.apart for run in runs), np.mean([run.spectrum[1] for run in runs])
        print(f"{name:14s} pairs of test lines apart: {apart} of {6 * len(runs)}; second singular value: {second:.0%}")
    draw(options.lines, outcomes, options.out)
    print(f"The picture is in {options.out}.")


if __name__ == "__main__":
    main()
