"""proxyanchor: the published formula and the peer's value."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml import OodmlError
from oodml.losses import make_loss


def oracle(embeddings, labels, proxies, alpha=32.0, delta=0.1):
    def cosine(x, w):
        return sum(i * j for i, j in zip(x, w, strict=True)) / (math.hypot(*x) * math.hypot(*w))

    pull, push, present = 0.0, 0.0, 0
    for c, w in enumerate(proxies.tolist()):
        s = [(cosine(x, w), y == c) for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True)]
        present += any(own for _, own in s)
        pull += math.log(1 + sum(math.exp(-alpha * (v - delta)) for v, own in s if own))
        push += math.log(1 + sum(math.exp(alpha * (v + delta)) for v, own in s if not own))
    return pull / present + push / len(proxies)


@pytest.mark.parametrize("options", [{}, {"alpha": 8.0, "delta": 0.3}])
def test_value_is_the_formula_and_the_peers(options):
    g = torch.Generator().manual_seed(4)
    embeddings, labels = torch.randn(10, 6, generator=g, dtype=torch.float64), torch.randint(3, (10,), generator=g)
    loss = make_loss("proxyanchor", num_classes=8, embedding_dim=6, generator=g, **options).double()  # 5 classes absent
    value = loss(embeddings, labels).item()
    assert value == pytest.approx(oracle(embeddings, labels, loss.proxies, **options), rel=1e-10)
    peer = peers.ProxyAnchorLoss(8, 6, margin=options.get("delta", 0.1), alpha=options.get("alpha", 32.0)).double()
    with torch.no_grad():
        peer.proxies.copy_(loss.proxies)
    assert value == pytest.approx(peer(embeddings, labels).item(), rel=1e-9)


def test_sharp_alpha_does_not_overflow():
    loss = make_loss("proxyanchor", num_classes=3, embedding_dim=4, alpha=500.0)
    embeddings = torch.randn(8, 4, requires_grad=True)
    value = loss(embeddings, torch.arange(8) % 3)
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(embeddings.grad).all()


def test_initialisations_and_learning_rate():
    g = torch.Generator().manual_seed(0)
    kaiming = make_loss("proxyanchor", num_classes=200, embedding_dim=128, generator=g)
    normal = make_loss("proxyanchor", num_classes=200, embedding_dim=128, generator=g, init="normal")
    assert kaiming.proxies.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert normal.proxies.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert kaiming.param_groups(1e-5)[0]["lr"] == pytest.approx(2000 * 1e-5)
    with pytest.raises(OodmlError, match="'uniform', 'normal' or 'kaiming'"):
        make_loss("proxyanchor", num_classes=4, embedding_dim=6, init="zeros")
