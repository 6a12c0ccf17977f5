"""circle: the formula, its detached weights, and the peer's value."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers
from torch.nn import functional as F

from oodml.losses import make_loss


def oracle(embeddings, labels, margin, gamma):
    s, y, terms = F.cosine_similarity(embeddings[:, None], embeddings, dim=2).tolist(), labels.tolist(), []
    for a in range(len(y)):
        positives = [s[a][j] for j in range(len(y)) if j != a and y[j] == y[a]]
        negatives = [s[a][j] for j in range(len(y)) if y[j] != y[a]]
        if positives and negatives:
            pull = sum(math.exp(-gamma * max(0.0, 1 + margin - v) * (v - 1 + margin)) for v in positives)
            push = sum(math.exp(gamma * max(0.0, v + margin) * (v - margin)) for v in negatives)
            terms.append(math.log(1 + push * pull))
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("margin", "gamma"), [(0.4, 80.0), (0.25, 16.0)])
def test_value_is_the_formula_and_the_peers(margin, gamma):
    g = torch.Generator().manual_seed(9)
    embeddings, labels = torch.randn(9, 5, generator=g, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
    value = make_loss("circle", margin=margin, gamma=gamma)(embeddings, labels).item()
    assert value == pytest.approx(oracle(embeddings, labels, margin, gamma), rel=1e-10)
    assert value == pytest.approx(peers.CircleLoss(m=margin, gamma=gamma)(embeddings, labels).item(), rel=1e-6)


def test_gradient_treats_the_weights_as_constants():
    g = torch.Generator().manual_seed(10)
    embeddings, labels = torch.randn(6, 4, generator=g, dtype=torch.float64), torch.arange(6) // 2
    ours, theirs = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    make_loss("circle")(ours, labels).backward()
    peers.CircleLoss()(theirs, labels).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)
