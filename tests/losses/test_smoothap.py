"""smoothap: the formula, the authors' form, its pieces, and what it is a surrogate of."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peers
from torch.nn import functional as F

from oodml.losses import make_loss, smoothap


def oracle(embeddings, labels, temperature=0.01, include_anchor=False):
    s, y, terms = F.cosine_similarity(embeddings[:, None], embeddings, dim=2).tolist(), labels.tolist(), []

    def step(x):
        return 1 / (1 + math.exp(-x / temperature))

    for a in range(len(y)):
        ranked = [k for k in range(len(y)) if include_anchor or k != a]
        positives = [k for k in ranked if y[k] == y[a]]
        if any(k != a for k in positives):
            total = 0.0
            for p in positives:
                among = 1 + sum(step(s[a][q] - s[a][p]) for q in positives if q != p)
                total += among / (1 + sum(step(s[a][k] - s[a][p]) for k in ranked if k != p))
            terms.append(1 - total / len(positives))
    return sum(terms) / len(terms)


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(11)
    return torch.randn(16, 5, generator=g, dtype=torch.float64), torch.arange(16) // 4


@pytest.mark.parametrize("temperature", [0.01, 0.1])
@pytest.mark.parametrize("labels", [torch.arange(16) // 4, torch.tensor([0, 0, 1] * 4 + [2, 3, 3, 3])])
def test_value_is_the_formula(batch, temperature, labels):
    value = make_loss("smoothap", temperature=temperature)(batch[0], labels).item()
    assert value == pytest.approx(oracle(batch[0], labels, temperature), rel=1e-10)


def test_authors_form_is_the_peers(batch):
    """The peer mixes up classes and samples a class, so they can be compared only where the two are as many."""
    value = make_loss("smoothap", include_anchor=True)(*batch).item()
    assert value == pytest.approx(oracle(*batch, include_anchor=True), rel=1e-10)
    assert value == pytest.approx(peers.SmoothAPLoss()(*batch).item(), rel=1e-6)


def test_authors_form_counts_no_anchor_that_is_alone(batch):
    labels = torch.tensor([0, 0, 1] * 4 + [2, 3, 3, 4])
    value = make_loss("smoothap", include_anchor=True)(batch[0], labels).item()
    assert value == pytest.approx(oracle(batch[0], labels, include_anchor=True), rel=1e-10)
    assert make_loss("smoothap", include_anchor=True)(batch[0], torch.arange(16)).item() == 0


def test_sharp_steps_give_average_precision(batch):
    embeddings, labels = batch
    value = make_loss("smoothap", temperature=1e-5)(embeddings, labels).item()
    s = F.cosine_similarity(embeddings[:, None], embeddings, dim=2).fill_diagonal_(-2)
    precisions = []
    for a, order in enumerate(s.argsort(1, descending=True)[:, :-1].tolist()):
        hits, total = 0, 0.0
        for rank, k in enumerate(order, start=1):
            if labels[k] == labels[a]:
                hits += 1
                total += hits / rank
        precisions.append(total / 3)
    assert value == pytest.approx(1 - sum(precisions) / len(precisions), abs=1e-6)


def test_pieces_do_not_change_value_or_gradient(batch, monkeypatch):
    embeddings, labels = batch
    whole, pieces = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    loss = make_loss("smoothap")
    value = loss(whole, labels)
    value.backward()
    monkeypatch.setattr(smoothap, "_MOST_ELEMENTS", 150)  # 16 · 3 · 16 elements: six pieces
    again = loss(pieces, labels)
    again.backward()
    torch.testing.assert_close(again, value)
    torch.testing.assert_close(pieces.grad, whole.grad)


def test_listing_every_reference_is_the_same(batch, monkeypatch):
    """What a device does, where counting the positives would force a sync."""
    value = make_loss("smoothap")(*batch)
    monkeypatch.setattr(smoothap, "_most_positives", lambda positives: positives.shape[1])
    torch.testing.assert_close(make_loss("smoothap")(*batch), value)


def test_no_cubic_tensor_at_batch_1024():
    embeddings = torch.randn(1024, 8, requires_grad=True)
    labels = torch.arange(1024) // 32
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        make_loss("smoothap")(embeddings, labels).backward()
    assert max(sizes) <= 2 * 1024**2  # 1024 · 31 · 1024 elements would be 31 times 1024²
