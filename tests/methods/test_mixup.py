"""Mixup: the mixture and both losses by hand, λ's distribution, where it mixes, what it refuses."""

import numpy as np
import pytest
import torch
from scipy import stats

import oodml
from oodml import OodmlError
from oodml.methods import Batch, Context
from oodml.models import freeze_batchnorm, make_backbone
from oodml.models.embedder import Embedder


def test_the_loss_weighs_the_losses_of_both_labels(prepared):
    run = prepared("mixup", base="multisimilarity")
    loss = run.loss().item()
    share, order = run.method.mixture
    batch = run.batch()
    mixed = torch.stack([share * batch.inputs[i] + (1 - share) * batch.inputs[order[i]] for i in range(16)])
    embedding = run.embedder.heads["embedding"](mixed)
    objective = oodml.make_loss("multisimilarity")
    both = [objective(embedding, labels).item() for labels in (batch.labels, batch.labels[order])]
    assert loss == pytest.approx(share.item() * both[0] + (1 - share.item()) * both[1], rel=1e-5)
    assert sorted(order.tolist()) == list(range(16))
    assert order.tolist() != list(range(16))


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_the_share_is_beta_distributed_and_comes_from_the_given_generator(prepared, alpha):
    run = prepared("mixup", alpha=alpha)
    batch = run.batch()
    drawn = [run.method.draw(batch, "features").share.item() for _ in range(1500)]
    assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 0.01
    run.generator.manual_seed(5)
    one = run.method.draw(batch, "features")
    run.generator.manual_seed(5)
    two = run.method.draw(batch, "features")
    assert one.share.equal(two.share) and one.order.equal(two.order)


def test_pictures_are_mixed_within_a_process_and_features_across_all(prepared):
    run = prepared("mixup")
    batch = run.batch()
    part = Batch(batch.inputs[:8], batch.labels, batch.indices, 0, lambda: batch.inputs)  # one of two processes
    orders = [run.method.draw(part, "input").order for _ in range(20)]
    for order in orders:
        assert sorted(order[:8].tolist()) == list(range(8))
        assert order[8:].tolist() == [8 + i for i in order[:8].tolist()]
    assert any(sorted(run.method.draw(part, "features").order[:8].tolist()) != list(range(8)) for _ in range(20))


def test_layers_take_turns():
    method = oodml.make_method("mixup", base="multisimilarity", layers=["input", "features"])
    generator = torch.Generator().manual_seed(0)
    backbone = freeze_batchnorm(make_backbone("tiny", seed=1))
    method.setup(Context(4, 8, backbone.feature_dim, 10, generator=generator))
    embedder = Embedder(backbone, method.heads(backbone.feature_dim), backbone.feature_dim)
    images, labels = torch.rand(16, 3, 16, 16), torch.arange(16) // 4
    batch = Batch(images, labels, np.arange(16), 0, lambda: images)
    for step, layer in enumerate(("input", "features", "input")):
        shown = method.inputs(batch, step)
        assert method.layer == layer
        share, order = method.mixture
        expected = share * images + (1 - share) * images[order] if layer == "input" else images
        torch.testing.assert_close(shown, expected)
        assert torch.isfinite(method.loss(batch, embedder, step))


def test_nothing_is_mixed_at_test_time(prepared):
    run, plain = prepared("mixup", base="multisimilarity"), prepared("multisimilarity")
    plain.embedder.load_state_dict(run.embedder.state_dict())
    inputs = run.batch().inputs
    torch.testing.assert_close(
        run.method.test_embedding(run.embedder(inputs)), plain.method.test_embedding(plain.embedder(inputs))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "diva"}, "'diva' looks at more of a picture"),
        ({"base": {"name": "sharing", "triplets": "groups"}}, "or its group"),
        ({"base": "mixup"}, "'mixup' looks at more"),
        ({"layers": "feature"}, "Did you mean 'features'"),
        ({"layers": []}, "features"),
        ({"alpha": 0.0}, "alpha > 0"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options, message):
    with pytest.raises(OodmlError, match=message):
        oodml.make_method("mixup", **options)
    with pytest.raises(OodmlError, match="no pictures to mix"):
        oodml.make_method("mixup", layers="input").check(64, "head")


def test_it_learns(gain_on_glyphs):
    """Measured: +.073 (plain margin +.087)."""
    assert gain_on_glyphs("mixup").gain["recall@1"] > 0.04
