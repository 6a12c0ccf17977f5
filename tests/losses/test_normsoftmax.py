"""normsoftmax: the formula and the peer's value."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml import OodmlError
from oodml.losses import make_loss


def oracle(embeddings, labels, centres, temperature):
    total = 0.0
    for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True):
        logits = [
            sum(i * j for i, j in zip(x, w, strict=True)) / (math.hypot(*x) * math.hypot(*w)) / temperature
            for w in centres.tolist()
        ]
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    return total / len(labels)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_value_is_the_formula_and_the_peers(temperature):
    g = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(9, 6, generator=g, dtype=torch.float64), torch.randint(4, (9,), generator=g)
    loss = make_loss("normsoftmax", num_classes=4, embedding_dim=6, generator=g, temperature=temperature).double()
    value = loss(embeddings, labels).item()
    assert value == pytest.approx(oracle(embeddings, labels, loss.proxies, temperature), rel=1e-10)
    peer = peers.NormalizedSoftmaxLoss(4, 6, temperature=temperature).double()
    with torch.no_grad():
        peer.W.copy_(loss.proxies.T)
    assert value == pytest.approx(peer(embeddings, labels).item(), rel=1e-9)


def test_temperature_and_learning_rate():
    with pytest.raises(OodmlError, match="temperature must be a positive number"):
        make_loss("normsoftmax", num_classes=4, embedding_dim=6, temperature=0.0)
    with pytest.raises(OodmlError, match="lr must be a positive number"):
        make_loss("normsoftmax", num_classes=4, embedding_dim=6, lr=0.0)
    assert make_loss("normsoftmax", num_classes=4, embedding_dim=6).param_groups(1e-5)[0]["lr"] == 1e-5
    assert make_loss("normsoftmax", num_classes=4, embedding_dim=6, lr=0.002).param_groups(1e-5)[0]["lr"] == 0.002
