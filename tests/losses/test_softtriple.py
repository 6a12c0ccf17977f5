"""softtriple: both terms of the formula; the peer has the first only."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers

from oodml import OodmlError
from oodml.losses import make_loss


def unit(x):
    return [v / math.hypot(*x) for v in x]


def dot(x, w):
    return sum(i * j for i, j in zip(x, w, strict=True))


def base_oracle(embeddings, labels, centres, scale, gamma, margin):
    total = 0.0
    for x, y in zip(embeddings.tolist(), labels.tolist(), strict=True):
        logits = []
        for c, group in enumerate(centres.tolist()):
            s = [dot(unit(x), unit(w)) for w in group]
            weights = [math.exp(v / gamma) for v in s]
            similarity = sum(a * b for a, b in zip(weights, s, strict=True)) / sum(weights)
            logits.append(scale * (similarity - margin * (c == y)))
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    return total / len(labels)


def spread_oracle(centres):
    num_classes, k, _ = centres.shape
    total = 0.0
    for group in centres.tolist():
        for i in range(k):
            for j in range(i + 1, k):
                total += math.sqrt(2.00001 - 2 * dot(unit(group[i]), unit(group[j])))
    return total / (num_classes * k * (k - 1))


def by_class(loss):
    """The centres as (C, K, d)."""
    return loss.proxies.view(loss.centres, -1, loss.embedding_dim).transpose(0, 1)


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(5)
    return torch.randn(10, 6, generator=g, dtype=torch.float64), torch.randint(4, (10,), generator=g)


@pytest.mark.parametrize("centres", [2, 5])
def test_value_is_the_formula(batch, centres):
    loss = make_loss("softtriple", num_classes=4, embedding_dim=6, centres=centres).double()
    groups = by_class(loss)
    expected = base_oracle(*batch, groups, 8.0, 0.1, 0.01) + 0.2 * spread_oracle(groups)
    assert loss(*batch).item() == pytest.approx(expected, rel=1e-10)


def test_first_term_is_the_peers(batch):
    options = {"scale": 20.0, "gamma": 0.3, "margin": 0.05}
    loss = make_loss("softtriple", num_classes=4, embedding_dim=6, centres=3, tau=0.0, **options).double()
    peer = peers.SoftTripleLoss(4, 6, centers_per_class=3, la=20.0, gamma=0.3, margin=0.05).double()
    with torch.no_grad():
        peer.fc.copy_(by_class(loss).reshape(12, 6).T)
    assert loss(*batch).item() == pytest.approx(peer(*batch).item(), rel=1e-9)


def test_one_centre_is_cosface(batch):
    loss = make_loss("softtriple", num_classes=4, embedding_dim=6, centres=1).double()
    cosface = make_loss("cosface", num_classes=4, embedding_dim=6, scale=8.0, margin=0.01).double()
    cosface.load_state_dict(loss.state_dict())
    torch.testing.assert_close(loss(*batch), cosface(*batch))


def test_merged_centres_have_a_finite_gradient(batch):
    loss = make_loss("softtriple", num_classes=4, embedding_dim=6)
    with torch.no_grad():
        loss.proxies[4:] = loss.proxies[:4]
    loss(batch[0].float(), batch[1]).backward()
    assert torch.isfinite(loss.proxies.grad).all()


def test_regulariser_merges_centres():
    loss = make_loss("softtriple", num_classes=2, embedding_dim=3, tau=1.0, generator=torch.Generator().manual_seed(0))
    embeddings, labels = torch.zeros(2, 3), torch.tensor([0, 1])  # no signal but the regulariser
    before = spread_oracle(by_class(loss))
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.1)
    for _ in range(20):
        optimiser.zero_grad()
        loss(embeddings, labels).backward()
        optimiser.step()
    assert spread_oracle(by_class(loss)) < 0.8 * before


def test_bad_options_are_named():
    with pytest.raises(OodmlError, match=r"centres.*at least 1"):
        make_loss("softtriple", num_classes=4, embedding_dim=6, centres=0)
    with pytest.raises(OodmlError, match="gamma must be a positive number"):
        make_loss("softtriple", num_classes=4, embedding_dim=6, gamma=0.0)
    assert make_loss("softtriple", num_classes=4, embedding_dim=6).param_groups(1e-5)[0]["lr"] == 1e-5
