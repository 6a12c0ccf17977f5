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
    batch = run.batch()
    run.generator.manual_seed(0)
    share, order = run.method.draw(batch, "features")
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


def test_images_are_mixed_within_a_process_and_features_across_all(prepared):
    run = prepared("mixup")
    batch = run.batch()
    part = Batch(batch.inputs[:8], batch.labels, batch.indices, 0, lambda: batch.inputs)  # one of two processes
    orders = [run.method.draw(part, layer).order for _ in range(20) for layer in ("input", "stage 1")]
    for order in orders:
        assert sorted(order[:8].tolist()) == list(range(8))
        assert order[8:].tolist() == [8 + i for i in order[:8].tolist()]
    assert any(sorted(run.method.draw(part, "features").order[:8].tolist()) != list(range(8)) for _ in range(20))


class OnImages:
    """Mixup on a small network that has stages."""

    def __init__(self, layers, backbone="tiny"):
        self.method = oodml.make_method("mixup", base="multisimilarity", layers=layers)
        self.generator = torch.Generator()
        self.backbone = freeze_batchnorm(make_backbone(backbone, pretrained=False, seed=1))
        size = self.backbone.feature_dim
        self.method.setup(Context(4, 8, size, 10, generator=self.generator))
        self.embedder = Embedder(self.backbone, self.method.heads(size), size)
        self.method.connect(self.embedder)
        side = self.backbone.input_size
        self.images, self.labels = torch.rand(16, 3, side, side), torch.arange(16) // 4
        self.batch = Batch(self.images, self.labels, np.arange(16), 0, lambda: self.images)

    def mixture(self, seed):
        """What a step with that seed draws."""
        self.generator.manual_seed(seed)
        self.method.inputs(self.batch, 0)
        layer, mixture = self.method.layer, self.method.mixture
        self.method.mixture = None
        return layer, mixture

    def loss(self, seed):
        self.generator.manual_seed(seed)
        return self.method.loss(self.batch, self.embedder, 0)


def test_each_step_draws_one_place_of_those_named():
    run = OnImages(["input", "stages", "features"])
    drawn = [run.mixture(seed)[0] for seed in range(40)]
    assert set(drawn) == {"input", "stage 1", "stage 2", "features"}
    assert drawn == [run.mixture(seed)[0] for seed in range(40)]
    assert {OnImages("stages").mixture(seed)[0] for seed in range(9)} == {"stage 1", "stage 2"}
    assert {OnImages("features").mixture(seed)[0] for seed in range(9)} == {"features"}


def test_what_a_stage_gives_is_mixed_and_the_rest_of_the_network_sees_the_mixture():
    run = OnImages(["input", "stages", "features"])
    for seed in range(4):
        layer, (share, order) = run.mixture(seed)
        maps = (run.images - run.backbone.mean) / run.backbone.std
        for place, stage in zip(("input", "stage 1", "stage 2"), run.backbone.body, strict=True):
            if place == layer:
                maps = share * maps + (1 - share) * maps[order]
            maps = stage(maps)
        pooled = maps.mean((2, 3))
        if layer == "features":
            pooled = share * pooled + (1 - share) * pooled[order]
        embedding = run.embedder.heads["embedding"](pooled)
        objective = oodml.make_loss("multisimilarity")
        own, other = (objective(embedding, labels) for labels in (run.labels, run.labels[order]))
        torch.testing.assert_close(run.loss(seed), share * own + (1 - share) * other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backbone", "stages"), [("tiny", 3), ("resnet18", 5), ("tf_efficientnet_lite0", 5)])
def test_backbones_say_where_their_stages_end(backbone, stages):
    network = make_backbone(backbone, pretrained=False)
    found = network.stages()
    assert len(found) == stages
    shapes = []
    for stage in found:
        stage.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    network(torch.rand(2, 3, 64, 64))
    sides = [shape[-1] for shape in shapes]
    assert all(len(shape) == 4 and shape[0] == 2 for shape in shapes)
    assert sides == sorted(sides, reverse=True) and len(sides) == stages


def test_an_evaluation_between_steps_sees_no_mixture():
    run, plain = OnImages("stages"), OnImages("features")
    run.loss(0)
    torch.testing.assert_close(run.embedder(run.images).features.avg, plain.embedder(run.images).features.avg)


def test_stages_that_cannot_be_mixed_are_refused(monkeypatch):
    run = OnImages("stages")
    run.embedder.chunk = 8
    with pytest.raises(OodmlError, match="grad_cache cuts in chunks"):
        run.loss(0)
    monkeypatch.setattr("oodml.models.backbones.base.Backbone.stages", lambda self: [])
    with pytest.raises(OodmlError, match="does not say where they end"):
        OnImages("stages")


@pytest.mark.long
def test_a_compiled_network_is_mixed_between_its_stages_too():
    eager, compiled = OnImages(["input", "stages", "features"]), OnImages(["input", "stages", "features"])
    compiled.images.copy_(eager.images)
    compiled.embedder.load_state_dict(eager.embedder.state_dict())
    compiled.backbone.compile(dynamic=False)
    for seed in range(8):
        torch.testing.assert_close(compiled.loss(seed), eager.loss(seed), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        compiled.embedder(eager.images).features.avg, eager.embedder(eager.images).features.avg, rtol=1e-3, atol=1e-4
    )


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
        ({"base": "diva"}, "'diva' uses more: a second view"),
        ({"base": "crossbatch"}, "a memory of other batches"),
        ({"base": {"name": "s2sd", "base": "crossbatch"}}, "a memory of other batches"),
        ({"base": {"name": "sharing", "triplets": "groups"}}, "a group"),
        ({"base": "mixup"}, "'mixup' uses more"),
        ({"layers": "feature"}, "Did you mean 'features'"),
        ({"layers": []}, "features"),
        ({"alpha": 0.0}, "alpha > 0"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options, message):
    with pytest.raises(OodmlError, match=message):
        oodml.make_method("mixup", **options)
    for layers in ("input", "stages"):
        with pytest.raises(OodmlError, match="no images to mix"):
            oodml.make_method("mixup", layers=layers).check(64, "head")


@pytest.mark.long
def test_it_learns(gain_on_glyphs):
    """Measured: +.073 (plain margin +.087)."""
    assert gain_on_glyphs("mixup").gain["recall@1"] > 0.04
