"""supcon: the formula and the peer's value."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml.losses import make_loss


def oracle(embeddings, labels, temperature):
    rows, y, terms = embeddings.tolist(), labels.tolist(), []

    def e(i, j):
        x, w = rows[i], rows[j]
        return math.exp(sum(a * b for a, b in zip(x, w, strict=True)) / (math.hypot(*x) * math.hypot(*w)) / temperature)

    for a in range(len(y)):
        positives = [p for p in range(len(y)) if p != a and y[p] == y[a]]
        if positives:
            total = sum(e(a, k) for k in range(len(y)) if k != a)
            terms.append(-sum(math.log(e(a, p) / total) for p in positives) / len(positives))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("temperature", [0.1, 0.7])
@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1, 2, 2, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3, 3]])
def test_value_is_the_formula_and_the_peers(temperature, labels):
    g = torch.Generator().manual_seed(7)
    embeddings, labels = torch.randn(9, 5, generator=g, dtype=torch.float64), torch.tensor(labels)
    value = make_loss("supcon", temperature=temperature)(embeddings, labels).item()
    assert value == pytest.approx(oracle(embeddings, labels, temperature), rel=1e-10)
    assert value == pytest.approx(peers.SupConLoss(temperature=temperature)(embeddings, labels).item(), rel=1e-6)


def test_one_class_alone_is_spread():
    """The peer returns 0 without negatives; the formula does not."""
    g = torch.Generator().manual_seed(8)
    embeddings, labels = torch.randn(5, 4, generator=g, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    expected = oracle(embeddings, labels, 0.1)
    assert expected > 0 and make_loss("supcon")(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


def test_agrees_with_ntxent_at_two_samples_a_class():
    embeddings, labels = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) // 2
    supcon, ntxent = make_loss("supcon", temperature=0.2), make_loss("ntxent", temperature=0.2)
    torch.testing.assert_close(supcon(embeddings, labels), ntxent(embeddings, labels))
