"""DiVA: the queue and the slow encoder against a slow reference, the contrast by hand, tasks, weights, what is kept."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import oodml
from oodml import OodmlError
from oodml.methods import Batch, Context
from oodml.methods.decorrelation import correlation
from oodml.methods.diva import HEADS, batch_weights, contrast, log_weights
from oodml.models import make_backbone
from oodml.models.embedder import Embedder


def density(d, dim):
    """Of distances on the unit sphere."""
    return d ** (dim - 2) * (1 - d * d / 4) ** ((dim - 3) / 2)


def unit(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=1)


def test_a_query_weighs_its_negatives_by_the_inverse_density_of_their_distances():
    dim, distances = 6, torch.tensor([[0.3, 0.6, 1.3, 1.5], [1.45, 1.6, 1.9, 1.41]], dtype=torch.float64)
    raw = [1 / density(max(d, 0.5), dim) for d in (0.3, 0.6, 1.3)]
    expected = [*(w / sum(raw) for w in raw), 0.0]
    found = log_weights(distances, dim).exp()
    assert found[0].tolist() == pytest.approx(expected)
    assert found[1].tolist() == [0.0] * 4


def test_the_coded_weights_sum_to_one_over_the_batch():
    dim, distances = 5, torch.tensor([[0.7, 1.5], [1.2, 1.6]], dtype=torch.float64)
    found = batch_weights(distances, dim)
    first = [1 / density(0.7, dim), 1 / density(1.2, dim)]
    assert found[:, 0].tolist() == pytest.approx([w / sum(first) for w in first])
    assert found[:, 1].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("weighting", ["query", "batch"])
def test_contrast_equals_its_formula(weighting):
    queries, keys, queue, tau = unit(3, 4, 0), unit(3, 4, 1), unit(7, 4, 2), 0.2
    distances = torch.cdist(queries, queue)
    by_query, by_batch = log_weights(distances, 4).exp(), batch_weights(distances, 4)
    by_hand = 0.0
    for i in range(3):
        own = math.exp(float(queries[i] @ keys[i]) / tau)
        others = 0.0
        for j in range(7):
            s = float(queries[i] @ queue[j])
            weight = by_query if weighting == "query" else by_batch
            others += math.exp(float(weight[i, j]) * s / tau)
        by_hand -= math.log(own / (own + others)) / 3
    assert contrast(queries, keys, queue, tau, weighting).item() == pytest.approx(by_hand, rel=1e-9)


def test_the_nearest_key_counts_in_full_and_far_ones_not_at_all():
    """In 128 dimensions the weights are those of a hardest negative: the gradient is that of the pair it makes."""
    query, near = unit(1, 128, 0), F.normalize(unit(1, 128, 0) + 0.6 * unit(1, 128, 1), dim=1)
    key, queue = F.normalize(unit(1, 128, 0) + 0.61 * unit(1, 128, 2), dim=1), torch.cat([near, unit(500, 128, 3)])
    query.requires_grad_()
    (found,) = torch.autograd.grad(contrast(query, key, queue, 0.01), query)
    pair = torch.cat([query @ key.T, query @ near.T], dim=1) / 0.01
    (expected,) = torch.autograd.grad(-pair.log_softmax(1)[0, 0], query)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.norm() > 1


def test_queue_and_slow_encoder_equal_a_slow_reference_over_several_steps(prepared):
    run = prepared("diva", queue=3, momentum=0.8)
    slow = {k: v.clone() for k, v in run.embedder.heads["self-similarity"].state_dict().items()}
    queue = [row.clone() for row in run.method.slow.queue.split(16)]
    for step in range(5):
        torch.testing.assert_close(run.method.slow.queue, torch.cat(queue))
        (batch,) = run.train_step(step)
        view = batch.another_view()
        keys = F.normalize(view @ slow["weight"].T + slow["bias"], dim=1)
        queue[step % 3] = keys
        fast = run.embedder.heads["self-similarity"].state_dict()
        slow = {k: 0.8 * v + 0.2 * fast[k] for k, v in slow.items()}
        for name, value in run.method.slow.slow.heads["self-similarity"].state_dict().items():
            torch.testing.assert_close(value, slow[name])


def test_the_whole_slow_network_follows_with_its_running_statistics():
    method = oodml.make_method("diva", momentum=0.5, queue=2)
    method.setup(Context(4, 16, 64, 10, batch_size=16, generator=torch.Generator()))
    backbone = make_backbone("tiny", seed=0)
    embedder = Embedder(backbone, method.heads(64), 64)
    method.connect(embedder)
    key = method.slow.slow
    assert not any(p.requires_grad for p in key.parameters())
    assert not any(m.training for m in key.modules())
    images, labels = torch.rand(16, 3, 16, 16), torch.arange(16) // 4
    before = [p.clone() for p in key.parameters()]
    optimiser = torch.optim.SGD(embedder.parameters(), lr=1.0)
    method.loss(Batch(images, labels, np.arange(16), 0, lambda: images.flip(-1)), embedder, 0).backward()
    torch.testing.assert_close(list(key.parameters()), before)
    optimiser.step()
    method.after_step(embedder, 0)
    fast = [*embedder.heads["self-similarity"].parameters()]
    for old, new, source in zip(before, key.backbone.parameters(), backbone.parameters(), strict=False):
        torch.testing.assert_close(new, (old + source) / 2)
    for old, new, source in zip(before[-2:], key.heads.parameters(), fast, strict=True):
        torch.testing.assert_close(new, (old + source) / 2)
    for ours, theirs in zip(key.backbone.buffers(), backbone.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert all(group["params"] for group in method.param_groups(0.1))
    named = {id(p) for group in method.param_groups(0.1) for p in group["params"]}
    assert named == {id(p) for p in method.parameters() if p.requires_grad}


def test_the_loss_is_the_sum_of_its_tasks(prepared):
    run = prepared("diva", base="contrastive", alpha=0.4, decorrelation=50.0, queue=2, dim=16)
    batch, method = run.batch(), run.method
    spaces = {name: run.embedder.heads[name](batch.inputs) for name in HEADS}
    run.generator.manual_seed(0)
    keys = method.slow.keys(batch.another_view(), run.embedder)
    own = contrast(F.normalize(spaces["self-similarity"], dim=1), keys, method.slow.queue, 0.01)
    # Tuples are drawn in the order of the tasks: shared, intra, discriminative.
    shared = method.shared_objective(spaces["shared"], batch.labels)
    intra = method.intra_objective(spaces["intra"], batch.labels)
    discriminative = method.objective(spaces["discriminative"], batch.labels)
    r = sum(
        correlation(spaces["discriminative"], method.regressors[name](F.normalize(spaces[name], dim=1)))
        for name in HEADS[1:]
    )
    expected = discriminative + 0.4 * (own + shared + intra) - 50 * r
    assert run.loss(batch).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("weights", [(0.75, 1.25), (0.5, 1.5), (1.0, 1.0)])
def test_the_plain_numbers_and_the_weighted_concatenation(prepared, weights):
    run = prepared("diva", weights=weights, dim=512)
    method = run.method
    assert (method.alpha, method.decorrelation, method.queue) == (0.2, 150.0, 30)
    outputs = run.embedder(run.batch().inputs)
    parts = [F.normalize(outputs.heads[name], dim=1) for name in HEADS]
    first, others = weights
    expected = torch.cat([first * parts[0], *(others * part for part in parts[1:])], 1)
    torch.testing.assert_close(method.test_embedding(outputs), expected / expected.norm(dim=1, keepdim=True))
    assert set(method.watched(outputs)) == set(HEADS)


@pytest.mark.parametrize("base", ["triplet", "proxyanchor", "multisimilarity", "npair", {"name": "rho"}])
@pytest.mark.parametrize(("sharing", "intra"), [("full", "intra"), ("permuted", "permuted")])
def test_other_bases_and_modes(prepared, base, sharing, intra):
    run = prepared("diva", base=base, sharing=sharing, intra=intra)
    run.train_step(0)
    assert torch.isfinite(run.loss())


def test_the_kept_weights_hold_the_four_heads_and_nothing_of_the_slow_network(prepared):
    kept = prepared("diva").embedder.test_weights(backbone=False)
    assert {key.split(".")[1] for key in kept if key.startswith("heads.")} == set(HEADS)
    assert all(key.startswith("heads.") or key == "feature_scale" for key in kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "s2sd"}, "'s2sd' is a method: give the loss"),
        ({"sharing": "fulll"}, "Did you mean 'full'"),
        ({"weighting": "key"}, "query"),
        ({"temperature": 0.0}, "temperature > 0"),
        ({"momentum": 1.5}, "momentum <= 1"),
        ({"queue": 0}, "whole numbers >= 1 as queue and hidden"),
        ({"weights": (1.0, 1.0, 1.0)}, "two weights"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options, message):
    with pytest.raises(OodmlError, match=message):
        oodml.make_method("diva", **options)
    with pytest.raises(OodmlError, match="not a multiple of 4"):
        oodml.make_method("diva").check(66, "all")


def test_it_learns(gain_on_glyphs):
    """Measured: +.088 with 4 × 64 dimensions."""
    assert gain_on_glyphs("diva", embedding_dim=256).gain["recall@1"] > 0.05
