"""proxynca and proxynca++: the formulas, the printed form, and the peer, which keeps the own proxy in the sum."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers
from torch.nn import functional as F

from oodml import OodmlError
from oodml.losses import make_loss


def distances(x, proxies, radius, power):
    x = [radius * v / math.hypot(*x) for v in x]
    return [math.dist(x, [radius * v / math.hypot(*w) for v in w]) ** power for w in proxies.tolist()]


def oracle(embeddings, labels, proxies, radius=3.0, power=2):
    total = 0.0
    for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True):
        d = distances(x, proxies, radius, power)
        total += d[y] + math.log(sum(math.exp(-v) for c, v in enumerate(d) if c != y))
    return total / len(labels)


def oracle_plus(embeddings, labels, proxies, temperature):
    total = 0.0
    for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True):
        d = [v / temperature for v in distances(x, proxies, 1.0, 2)]
        total += d[y] + math.log(sum(math.exp(-v) for v in d))
    return total / len(labels)


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(3)
    return torch.randn(10, 6, generator=g, dtype=torch.float64), torch.randint(4, (10,), generator=g)


@pytest.mark.parametrize(("options", "radius", "power"), [({}, 3.0, 2), ({"radius": 1.0, "squared": False}, 1.0, 1)])
def test_proxynca_is_the_formula(batch, options, radius, power):
    loss = make_loss("proxynca", num_classes=4, embedding_dim=6, **options).double()
    assert loss(*batch).item() == pytest.approx(oracle(*batch, loss.proxies, radius, power), rel=1e-10)


@pytest.mark.parametrize("temperature", [1 / 9, 0.5])
def test_proxynca_plus_is_the_formula_and_the_peers(batch, temperature):
    loss = make_loss("proxynca++", num_classes=4, embedding_dim=6, temperature=temperature).double()
    value = loss(*batch).item()
    assert value == pytest.approx(oracle_plus(*batch, loss.proxies, temperature), rel=1e-10)
    peer = peers.ProxyNCALoss(4, 6, softmax_scale=1 / temperature).double()  # named ProxyNCA, but the ++ denominator
    with torch.no_grad():
        peer.proxies.copy_(loss.proxies)
    assert value == pytest.approx(peer(*batch).item(), rel=1e-9)


def test_proxynca_plus_differs_only_by_the_own_proxy_in_the_denominator(batch):
    loss = make_loss("proxynca", num_classes=4, embedding_dim=6).double()
    plus = make_loss("proxynca++", num_classes=4, embedding_dim=6).double()
    plus.load_state_dict(loss.state_dict())
    embeddings, labels = batch
    d = 9 * (F.normalize(embeddings)[:, None] - F.normalize(loss.proxies)).square().sum(2)
    own = d.gather(1, labels[:, None])[:, 0]
    others = (-d).masked_fill(F.one_hot(labels, 4).bool(), -math.inf).logsumexp(1)
    torch.testing.assert_close(loss(*batch), (own + others).mean())
    torch.testing.assert_close(plus(*batch), F.softplus(own + others).mean())


def test_one_class_has_no_other_proxy():
    with pytest.raises(OodmlError, match="num_classes= of at least 2"):
        make_loss("proxynca", num_classes=1, embedding_dim=6)


def test_proxies_learn_fifty_times_as_fast_as_the_papers_model():
    assert make_loss("proxynca", num_classes=4, embedding_dim=6).param_groups(1e-5)[0]["lr"] == pytest.approx(50 * 1e-5)


def test_coinciding_points_with_unsquared_distances():
    loss = make_loss("proxynca", num_classes=3, embedding_dim=4, radius=1.0, squared=False)
    embeddings = loss.proxies.detach().clone().requires_grad_()
    loss(embeddings, torch.arange(3)).backward()
    assert torch.isfinite(embeddings.grad).all() and torch.isfinite(loss.proxies.grad).all()
