"""arcface: the formula, the peer's value, and the two places where the authors' form loses its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml.losses import make_loss
from oodml.losses.arcface import angular_margin


def oracle(embeddings, labels, centres, scale=16.0, margin=0.5, clamp_negative=False):
    total = 0.0
    for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True):
        logits = []
        for c, w in enumerate(centres.tolist()):
            cosine = sum(i * j for i, j in zip(x, w, strict=True)) / (math.hypot(*x) * math.hypot(*w))
            if clamp_negative:
                cosine = max(cosine, 1e-10)
            if c == y:
                theta = math.acos(cosine)
                cosine = math.cos(theta + margin) if theta <= math.pi - margin else cosine - margin * math.sin(margin)
            logits.append(scale * cosine)
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    return total / len(labels)


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(0)
    loss = make_loss("arcface", num_classes=7, embedding_dim=5, generator=g).double()
    embeddings = torch.randn(12, 5, generator=g, dtype=torch.float64)
    return loss, embeddings, torch.randint(7, (12,), generator=g)


def test_value_is_the_formula(case):
    loss, embeddings, labels = case
    assert loss(embeddings, labels).item() == pytest.approx(oracle(embeddings, labels, loss.proxies), rel=1e-10)


def test_options_reach_the_formula(case):
    _, embeddings, labels = case
    options = {"scale": 30.0, "margin": 1.2, "clamp_negative": True}
    loss = make_loss("arcface", num_classes=7, embedding_dim=5, **options).double()
    expected = oracle(embeddings, labels, loss.proxies, **options)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("margin", [0.5, 1.5])
def test_same_as_the_peer(case, margin):
    _, embeddings, labels = case
    ours = make_loss("arcface", num_classes=7, embedding_dim=5, margin=margin, scale=64.0).double()
    peer = peers.ArcFaceLoss(7, 5, margin=math.degrees(margin), scale=64.0).double()
    with torch.no_grad():
        peer.W.copy_(ours.proxies.T)
    assert ours(embeddings, labels).item() == pytest.approx(peer(embeddings, labels).item(), rel=1e-9)


def test_margin_falls_monotonically_over_all_angles():
    cosine = torch.linspace(1, -1, 10_001, dtype=torch.float64)
    shifted = angular_margin(cosine, 0.5)
    inside = cosine > -math.cos(0.5)
    assert (shifted[inside].diff() < 0).all() and (shifted[~inside].diff() < 0).all()
    torch.testing.assert_close(shifted[inside], torch.cos(torch.acos(cosine[inside].clamp(max=1 - 1e-7)) + 0.5))


def test_centres_behind_the_embedding_still_learn():
    loss = make_loss("arcface", num_classes=3, embedding_dim=2)
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor([[1.0, 0.1], [-1.0, 0.2], [-1.0, -0.3]]))
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1]]), torch.tensor([1, 2])
    (gradient,) = torch.autograd.grad(loss(embeddings, labels), loss.proxies)
    assert (gradient.norm(dim=1) > 1e-4).all()
    loss.clamp_negative = True
    (gradient,) = torch.autograd.grad(loss(embeddings, labels), loss.proxies)
    assert (gradient[1:] == 0).all(), "the authors' clamp stops them"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_finite_gradient_on_and_opposite_the_own_centre(sign):
    loss = make_loss("arcface", num_classes=3, embedding_dim=4)
    embeddings = (sign * loss.proxies[[0, 1, 2]]).detach().requires_grad_()
    value = loss(embeddings, torch.tensor([0, 1, 2]))
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(embeddings.grad).all() and torch.isfinite(loss.proxies.grad).all()


def test_learning_rate_of_the_paper():
    (group,) = make_loss("arcface", num_classes=3, embedding_dim=4).param_groups(1e-5)
    assert group["lr"] == 5e-4 and group["weight_decay"] == 0
