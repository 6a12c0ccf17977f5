"""cosface: the formula and the peer's value."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml.losses import make_loss


def oracle(embeddings, labels, centres, scale, margin):
    total = 0.0
    for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True):
        logits = []
        for c, w in enumerate(centres.tolist()):
            cosine = sum(i * j for i, j in zip(x, w, strict=True)) / (math.hypot(*x) * math.hypot(*w))
            logits.append(scale * (cosine - margin * (c == y)))
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    return total / len(labels)


@pytest.mark.parametrize("options", [{}, {"scale": 10.0, "margin": 0.1}])
def test_value_is_the_formula_and_the_peers(options):
    g = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(9, 6, generator=g, dtype=torch.float64), torch.randint(4, (9,), generator=g)
    loss = make_loss("cosface", num_classes=4, embedding_dim=6, generator=g, **options).double()
    scale, margin = options.get("scale", 64.0), options.get("margin", 0.35)
    value = loss(embeddings, labels).item()
    assert value == pytest.approx(oracle(embeddings, labels, loss.proxies, scale, margin), rel=1e-10)
    peer = peers.CosFaceLoss(4, 6, margin=margin, scale=scale).double()
    with torch.no_grad():
        peer.W.copy_(loss.proxies.T)
    assert value == pytest.approx(peer(embeddings, labels).item(), rel=1e-9)


def test_no_margin_is_the_normalised_softmax():
    g = torch.Generator().manual_seed(2)
    embeddings, labels = torch.randn(9, 6, generator=g), torch.randint(4, (9,), generator=g)
    cosface = make_loss("cosface", num_classes=4, embedding_dim=6, margin=0.0, scale=20.0)
    softmax = make_loss("normsoftmax", num_classes=4, embedding_dim=6, temperature=0.05)
    softmax.load_state_dict(cosface.state_dict())
    torch.testing.assert_close(cosface(embeddings, labels), softmax(embeddings, labels))
