"""ntxent (infonce): the formula and the peer's value, with all pairs and with explicit tuples."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml import OodmlError
from oodml.losses import make_loss
from oodml.miners import Pairs, Triplets


def cosine(x, w):
    return sum(i * j for i, j in zip(x, w, strict=True)) / (math.hypot(*x) * math.hypot(*w))


def oracle(embeddings, positives, negatives, temperature):
    """`positives`, `negatives`: sets of (anchor, other)."""
    rows, terms = embeddings.tolist(), []
    for a, p in positives:
        own = math.exp(cosine(rows[a], rows[p]) / temperature)
        rest = sum(math.exp(cosine(rows[a], rows[n]) / temperature) for b, n in negatives if b == a)
        terms.append(-math.log(own / (own + rest)))
    return sum(terms) / len(terms)


def all_pairs(labels):
    y = labels.tolist()
    pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if i != j]
    return {(i, j) for i, j in pairs if y[i] == y[j]}, {(i, j) for i, j in pairs if y[i] != y[j]}


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(6)
    return torch.randn(9, 5, generator=g, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_value_is_the_formula_and_the_peers(batch, temperature):
    value = make_loss("ntxent", temperature=temperature)(*batch).item()
    assert value == pytest.approx(oracle(batch[0], *all_pairs(batch[1]), temperature), rel=1e-10)
    assert value == pytest.approx(peers.NTXentLoss(temperature=temperature)(*batch).item(), rel=1e-6)


def test_infonce_is_the_same(batch):
    assert torch.equal(make_loss("infonce")(*batch), make_loss("ntxent")(*batch))


def test_tuples_name_the_pairs(batch):
    a, p, n = torch.tensor([0, 0, 3, 5]), torch.tensor([1, 1, 4, 6]), torch.tensor([3, 5, 0, 8])
    positives, negatives = {(0, 1), (3, 4), (5, 6)}, {(0, 3), (0, 5), (3, 0), (5, 8)}
    expected = oracle(batch[0], positives, negatives, 0.07)
    loss = make_loss("ntxent")
    assert loss(*batch, tuples=(a, p, n)).item() == pytest.approx(expected, rel=1e-10)

    junk = torch.tensor([7])  # rows that the mask rejects, one of them naming a valid pair again
    extended = Triplets(*(torch.cat([t, junk]) for t in (a, p, n)), torch.tensor([True] * 4 + [False]))
    assert loss(*batch, tuples=extended).item() == pytest.approx(expected, rel=1e-10)

    yes, no = torch.ones(4, dtype=torch.bool), torch.tensor([True, True, True, True, False])
    pairs = Pairs(a, p, torch.cat([a, a[:1]]), torch.cat([n, n[:1]]), yes, no)
    assert loss(*batch, tuples=pairs).item() == pytest.approx(expected, rel=1e-10)


def test_tuples_that_are_none_are_refused(batch):
    index = torch.tensor([0])
    with pytest.raises(OodmlError, match="got 2 of"):
        make_loss("ntxent")(*batch, tuples=(index, index))
    with pytest.raises(OodmlError, match="got 4 of"):
        make_loss("ntxent")(*batch, tuples=(index, index, index, index))


def test_temperature_must_be_positive():
    with pytest.raises(OodmlError, match="temperature must be a positive number"):
        make_loss("ntxent", temperature=-1.0)
