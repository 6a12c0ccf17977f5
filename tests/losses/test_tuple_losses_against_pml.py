"""The same functions in pytorch-metric-learning: value and gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners
from torch import Tensor

import oodml
from oodml.miners import Pairs

RAW_DOT = distances.DotProductSimilarity(normalize_embeddings=False)
RAW_DISTANCE = distances.LpDistance(normalize_embeddings=False)


def batch(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    y = torch.arange(24) // samples
    x = torch.randn(24, 10, generator=generator, dtype=torch.float64)
    return x + torch.randn(24, 10, generator=generator, dtype=torch.float64)[y], y


def value_and_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    value = loss(leaf)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def assert_same(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], x: Tensor) -> None:
    for mine, other in zip(value_and_gradient(ours, x), value_and_gradient(theirs, x), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize(
    ("name", "options", "peer"),
    [
        ("triplet", {"miner": "all"}, lambda: losses.TripletMarginLoss(0.2, reducer=_mean())),
        ("margin", {"miner": "all", "num_classes": 12}, lambda: losses.MarginLoss(num_classes=12, learn_beta=True)),
        (
            "snr",
            {"miner": "all", "lam": 0.0},
            lambda: losses.TripletMarginLoss(0.2, distance=distances.SNRDistance(normalize_embeddings=True)),
        ),
        ("contrastive", {"miner": "lifted"}, lambda: losses.ContrastiveLoss(reducer=_mean())),
        ("genlifted", {"nu": 0.0}, lambda: losses.GeneralizedLiftedStructureLoss(distance=RAW_DISTANCE)),
        ("npair", {"nu": 0.0}, lambda: losses.NTXentLoss(temperature=1, distance=RAW_DOT)),
        ("histogram", {}, lambda: losses.HistogramLoss(n_bins=64)),
    ],
)
def test_same_function_as_the_peer(name: str, options: dict, peer: Callable, samples: int) -> None:
    x, y = batch(samples)
    ours, theirs = oodml.make_loss(name, **options), peer()
    assert_same(lambda z: ours(z, y), lambda z: theirs(z, y), x)


@pytest.mark.parametrize("samples", [2, 3])
def test_multisimilarity_with_its_miner(samples: int) -> None:
    x, y = batch(samples)
    ours = oodml.make_loss("multisimilarity")
    theirs, miner = losses.MultiSimilarityLoss(2, 40, 0.5), miners.MultiSimilarityMiner(0.1)
    assert_same(lambda z: ours(z, y), lambda z: theirs(z, y, miner(z, y)), x)


def test_the_angular_part() -> None:
    x, y = batch(3)
    ours, npair = oodml.make_loss("angular", alpha=40.0, weight=1.0), oodml.make_loss("npair")
    theirs = losses.AngularLoss(alpha=40)
    unit = torch.nn.functional.normalize(x)  # the peer normalises anchor and positive, but not the negatives
    ours_part = ours(unit, y) - npair(unit, y)
    torch.testing.assert_close(ours_part, theirs(unit, y), rtol=1e-6, atol=1e-8)


def test_npair_on_the_pairs_of_the_peer() -> None:
    """The peer takes one pair a class and the positives of the other classes as negatives."""
    x, y = batch(2)
    a, p = torch.arange(0, 24, 2), torch.arange(1, 24, 2)
    grid_a, grid_n = a.repeat_interleave(12), p.repeat(12)
    pairs = Pairs(a, p, grid_a, grid_n, torch.ones(12, dtype=torch.bool), y[grid_a] != y[grid_n])
    ours, theirs = oodml.make_loss("npair", nu=0.0), losses.NPairsLoss(distance=RAW_DOT)
    assert_same(lambda z: ours(z, y, pairs), lambda z: theirs(z, y, (a, p, a[:0], a[:0])), x)


def test_all_triplets_are_the_peers() -> None:
    from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_triplets_indices

    x, y = batch(3)
    mined = oodml.make_miner("all")(x, y)
    ours = set(zip(*(i.tolist() for i in mined[:3]), strict=True))
    theirs = set(zip(*(i.tolist() for i in get_all_triplets_indices(y)), strict=True))
    assert ours == theirs
    assert len(mined.anchor) == len(theirs)


def _mean() -> torch.nn.Module:
    from pytorch_metric_learning.reducers import MeanReducer

    return MeanReducer()
